package consul

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	// probeWithin is the deadline of a probe and of the first read, readWithin that of
	// other reads without an index: a server that has no leader answers after 7 to 11 s.
	probeWithin = 5 * time.Second
	readWithin  = 15 * time.Second
	// maxBody is how long an answer may be.
	maxBody = 256 << 20
	// readsAtOnce is how many reads without an index are under way at a time.
	readsAtOnce = 16
	// streams is how many requests share a connection of HTTP/2; Consul allows 250.
	streams = 200
	// oldest is how far a follower may be behind the leader (CON-5).
	oldest = 5 * time.Second
)

// The kinds of errors that need more than a retry.
var (
	errRefused = errors.New("refused")          // the token
	errLimited = errors.New("too many at once") // connections or requests
)

// client reads from one agent. It is safe for concurrent use.
type client struct {
	base              *url.URL
	datacenter, token string
	// polls and reads have connections of their own, so that a read does not wait until a
	// poll ends.
	polls, reads http.Client
}

// newClients returns a client for each address. It reads the files of the settings.
func newClients(s *Settings) ([]*client, error) {
	token := ""
	if s.TokenFile != "" {
		b, err := os.ReadFile(s.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("the ACL token: %w", err)
		}
		if token = strings.TrimSpace(string(b)); token == "" {
			return nil, fmt.Errorf("the ACL token: %s is empty", s.TokenFile)
		}
	}
	config, err := tlsConfig(s)
	if err != nil {
		return nil, err
	}
	var all []*client
	for _, a := range s.Addresses {
		base, err := ParseAddress(a)
		if err != nil {
			return nil, err
		}
		c := &client{base: base, datacenter: s.Datacenter, token: token}
		polls, reads := s.maxPolls(base)+3, readsAtOnce+1 // three polls beside those of services, and a probe
		if base.Scheme == "https" {
			polls, reads = polls/streams+1, 2
		}
		c.polls.Transport, c.reads.Transport = transport(config, polls), transport(config, reads)
		c.polls.CheckRedirect, c.reads.CheckRedirect = noRedirect, noRedirect
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, errors.New("no address of an agent is given")
	}
	return all, nil
}

// Verify reads the files that the settings name.
func (s *Settings) Verify() error {
	_, err := newClients(s)
	return err
}

// ParseAddress returns the URL of an agent. Without a scheme it is one of plain HTTP.
func ParseAddress(a string) (*url.URL, error) {
	text := a
	if !strings.Contains(a, "://") {
		text = "http://" + a
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%q is no address of an agent: write it as 127.0.0.1:8500 or https://consul.example.com:8501", a)
	}
	u.Path = ""
	return u, nil
}

// maxPolls returns how many services are polled at an address (CON-10).
func (s *Settings) maxPolls(base *url.URL) int {
	switch {
	case s.MaxPolls > 0:
		return s.MaxPolls
	case base.Scheme == "https":
		return 8000
	}
	return 150
}

func tlsConfig(s *Settings) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if s.CAFile != "" {
		pem, err := os.ReadFile(s.CAFile)
		if err != nil {
			return nil, fmt.Errorf("the CAs of agents: %w", err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("the CAs of agents: %s has no certificate", s.CAFile)
		}
	}
	if s.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(s.CertFile, s.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("the certificate for agents: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// transport dials connections at most: with HTTP/2, Go dials for each request that finds
// no free stream, and Consul refuses an address more than 200 connections.
func transport(config *tls.Config, connections int) *http.Transport {
	return &http.Transport{
		TLSClientConfig: config, ForceAttemptHTTP2: true, MaxConnsPerHost: connections, MaxIdleConnsPerHost: connections,
		TLSHandshakeTimeout: probeWithin, DisableCompression: true, IdleConnTimeout: time.Minute,
	}
}

// noRedirect refuses redirects: they could take the token elsewhere.
func noRedirect(*http.Request, []*http.Request) error {
	return errors.New("the agent redirects: give the address to which it does")
}

func (c *client) close() {
	c.polls.CloseIdleConnections()
	c.reads.CloseIdleConnections()
}

// query is one request.
type query struct {
	path   string
	params url.Values
	within time.Duration
	// index makes it a poll: the answer comes when the index has risen, or after wait.
	index uint64
	wait  time.Duration
}

// answer is what the headers of an answer say.
type answer struct {
	index    uint64
	filtered bool // something may have been left out because of the token's rights
	stale    bool // older than what the leader has, or there is no leader
}

// get makes a request. Of a poll whose index has not risen, the body is not read: it may
// be anything.
func (c *client) get(ctx context.Context, q query, into any) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, q.within)
	defer cancel()
	params := url.Values{"dc": {c.datacenter}}
	for k, v := range q.params {
		params[k] = v
	}
	via := &c.reads
	if q.index > 0 {
		via = &c.polls
		params.Set("index", strconv.FormatUint(q.index, 10))
		params.Set("wait", q.wait.String())
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base.String()+q.path+"?"+params.Encode(), nil)
	if err != nil {
		return answer{}, err
	}
	r.Header.Set("Accept", "application/json")
	r.Header.Set("User-Agent", "meshlog")
	if c.token != "" {
		r.Header.Set("X-Consul-Token", c.token)
	}
	resp, err := via.Do(r)
	if err != nil {
		return answer{}, c.reason(ctx, q, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return answer{}, c.status(resp, q)
	}
	a := answer{
		index: 1,
		// Without a token nothing says that something was left out (CON-9).
		filtered: resp.Header.Get("X-Consul-Results-Filtered-By-Acls") == "true" || c.token == "" && resp.Header.Get("X-Consul-Default-Acl-Policy") == "deny",
	}
	if n, err := strconv.ParseUint(resp.Header.Get("X-Consul-Index"), 10, 64); err == nil {
		a.index = max(n, 1)
	}
	if resp.Header.Get("X-Consul-Query-Backend") != "streaming" {
		behind, _ := strconv.Atoi(resp.Header.Get("X-Consul-Lastcontact"))
		a.stale = resp.Header.Get("X-Consul-Knownleader") == "false" || time.Duration(behind)*time.Millisecond > oldest
	}
	body := io.LimitReader(resp.Body, maxBody)
	if q.index > 0 && a.index <= q.index {
		_, err := io.Copy(io.Discard, body) // so that the connection can be used again
		return a, err
	}
	b, err := io.ReadAll(body)
	if err != nil {
		return a, c.reason(ctx, q, err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		return a, fmt.Errorf("%s%s: the answer is not what Consul sends: %w", c.base, q.path, err)
	}
	return a, nil
}

// reason returns why no answer came. A limit of connections shows in many ways: the server
// writes a plain response in the place of HTTP/2, or before it has read the request.
func (c *client) reason(ctx context.Context, q query, err error) error {
	if e := (*url.Error)(nil); errors.As(err, &e) {
		err = e.Err
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%s%s: no answer in %s", c.base, q.path, q.within.Round(time.Second))
	}
	if text := err.Error(); strings.Contains(text, "looked like an HTTP/1.1 header") || strings.Contains(text, "readLoopPeekFailLocked") {
		return fmt.Errorf("%s%s: %w: %w", c.base, q.path, errLimited, err)
	}
	return fmt.Errorf("%s%s: %w", c.base, q.path, err)
}

// status returns what a response says that has no data.
func (c *client) status(resp *http.Response, q query) error {
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 200))
	err := fmt.Errorf("%s%s: %s: %s", c.base, q.path, resp.Status, strings.TrimSpace(string(b)))
	switch resp.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("%w: %w", errRefused, err)
	case http.StatusTooManyRequests:
		return fmt.Errorf("%w: %w", errLimited, err)
	}
	return err
}
