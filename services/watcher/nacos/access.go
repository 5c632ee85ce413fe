package nacos

import (
	"bytes"
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
	"strings"
	"sync"
	"time"
)

// Credentials are files, read for each connection to a server and each login (REG-14).
type Credentials struct {
	// UsernameFile and PasswordFile are of an account; empty: the server wants none.
	UsernameFile, PasswordFile string
	// CAFile has CAs of the servers' certificates as PEM; empty: those of the system.
	CAFile string
	// CertFile and KeyFile are the watcher's certificate; empty: none.
	CertFile, KeyFile string
}

// Verify returns an error if a file cannot be used.
func (c *Credentials) Verify() error {
	_, tlsErr := c.tls()
	if c.UsernameFile == "" {
		return tlsErr
	}
	_, _, err := c.account()
	return errors.Join(tlsErr, err)
}

func (c *Credentials) account() (user, password string, err error) {
	u, err := os.ReadFile(c.UsernameFile)
	if err != nil {
		return "", "", err
	}
	p, err := os.ReadFile(c.PasswordFile)
	if err != nil {
		return "", "", err
	}
	return string(bytes.TrimSpace(u)), strings.TrimRight(string(p), "\r\n"), nil
}

func (c *Credentials) tls() (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, err
		}
		if t.RootCAs = x509.NewCertPool(); !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s has no certificate", c.CAFile)
		}
	}
	if c.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, err
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return t, nil
}

const (
	httpTimeout = 5 * time.Second
	maxBody     = 64 << 20
	// loginPause is the least time between two logins: servers refuse clients that log in
	// too often.
	loginPause = 5 * time.Second
)

// errRefused says that the server does not take the credentials.
var errRefused = errors.New("the server refuses the credentials")

// access reads a server's HTTP API, and logs in there for the access token of requests
// (NAC-12). It is safe for concurrent use.
type access struct {
	base        string // http://HOST:PORT
	credentials *Credentials
	client      *http.Client

	mu       sync.Mutex // held during a login: one at a time
	token    string
	loggedIn time.Time
	renew    time.Time // when the token's lifetime is over for 80 %
}

func newAccess(base string, c *Credentials, t *tls.Config) *access {
	return &access{base: base, credentials: c, client: &http.Client{
		Timeout: httpTimeout,
		// No proxy and no other part of the environment.
		Transport: &http.Transport{TLSClientConfig: t, ForceAttemptHTTP2: true, MaxIdleConns: 1},
	}}
}

func (a *access) close() { a.client.CloseIdleConnections() }

// get returns the token for a request; empty if the server needs none.
func (a *access) get(ctx context.Context) (string, error) {
	if a.credentials.UsernameFile == "" {
		return "", nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.token != "" && time.Now().Before(a.renew) {
		return a.token, nil
	}
	token, lifetime, err := a.login(ctx)
	if err != nil {
		return "", err
	}
	a.token, a.loggedIn = token, time.Now()
	a.renew = a.loggedIn.Add(lifetime * 4 / 5)
	return token, nil
}

// refused takes back a token that the server has refused. It reports whether another one
// may help.
func (a *access) refused(token string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.credentials.UsernameFile == "":
		return false
	case a.token != token:
		return true // another request has logged in since
	case time.Since(a.loggedIn) < loginPause:
		return false // it is new: the account lacks the right
	}
	a.token = ""
	return true
}

// logins are the paths of the login: of Nacos 3, and of earlier ones.
var logins = []string{"/nacos/v3/auth/user/login", "/nacos/v1/auth/users/login"}

func (a *access) login(ctx context.Context) (token string, lifetime time.Duration, err error) {
	user, password, err := a.credentials.account()
	if err != nil {
		return "", 0, fmt.Errorf("%w: %w", errRefused, err)
	}
	form := url.Values{"username": {user}, "password": {password}}
	for _, path := range logins {
		var answer struct {
			Token string `json:"accessToken"`
			TTL   int64  `json:"tokenTtl"`
		}
		if err = a.do(ctx, http.MethodPost, path, form, "", &answer); errors.Is(err, errNoSuchPath) {
			continue
		}
		if err == nil && answer.Token == "" {
			err = fmt.Errorf("%s%s answers without a token", a.base, path)
		}
		if err != nil {
			return "", 0, fmt.Errorf("log in with %s: %w", a.credentials.UsernameFile, err)
		}
		return answer.Token, max(time.Duration(answer.TTL)*time.Second, time.Second), nil
	}
	return "", 0, fmt.Errorf("log in: %w", err)
}

// errNoSuchPath says that the server does not have this part of the API.
var errNoSuchPath = errors.New("no such path")

// do sends a request with parameters and reads its JSON answer into a value.
func (a *access) do(ctx context.Context, method, path string, parameters url.Values, token string, into any) error {
	target, body := a.base+path, ""
	if method == http.MethodPost {
		body = parameters.Encode()
	} else {
		target += "?" + parameters.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, target, strings.NewReader(body))
	if err != nil {
		return fmt.Errorf("%s%s: %w", a.base, path, err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := a.client.Do(req)
	if err != nil {
		if e := (*url.Error)(nil); errors.As(err, &e) {
			err = e.Err
		}
		return fmt.Errorf("%s%s: %w", a.base, path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	switch {
	case err != nil:
	case resp.StatusCode == http.StatusNotFound, resp.StatusCode == http.StatusGone, resp.StatusCode == http.StatusMethodNotAllowed, resp.StatusCode == http.StatusNotImplemented:
		err = fmt.Errorf("%w: status %d", errNoSuchPath, resp.StatusCode)
	case resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusForbidden:
		err = fmt.Errorf("%w: status %d: %s", errRefused, resp.StatusCode, quote(b))
	case resp.StatusCode != http.StatusOK:
		err = fmt.Errorf("status %d: %s", resp.StatusCode, quote(b))
	default:
		err = json.Unmarshal(b, into)
	}
	if err != nil {
		return fmt.Errorf("%s%s: %w", a.base, path, err)
	}
	return nil
}

// quote returns the beginning of an answer for an error.
func quote(b []byte) string {
	if b = bytes.TrimSpace(b); len(b) > 200 {
		b = b[:200]
	}
	return fmt.Sprintf("%q", b)
}

// AllGroups as the only group reads the services of all groups of the namespace.
const AllGroups = "*"

// grouped is a service in a list of all groups.
type grouped struct {
	Name  string `json:"name"`
	Group string `json:"groupName"`
}

// all returns the services of all groups, which only the HTTP API has (NAC-11). whole is
// false if the server says that there are more.
func (a *access) all(ctx context.Context, namespace string) (services []serviceID, whole bool, err error) {
	token, err := a.get(ctx)
	if err != nil {
		return nil, false, err
	}
	size := fmt.Sprint(pageSize)
	var now struct {
		Data struct {
			Count int       `json:"totalCount"`
			Items []grouped `json:"pageItems"`
		} `json:"data"`
	}
	err = a.do(ctx, http.MethodGet, "/nacos/v3/admin/ns/service/list", url.Values{"namespaceId": {namespace}, "pageNo": {"1"}, "pageSize": {size}}, token, &now)
	count, items := now.Data.Count, now.Data.Items
	if errors.Is(err, errNoSuchPath) {
		var before struct {
			Count int       `json:"count"`
			Items []grouped `json:"serviceList"`
		}
		err = a.do(ctx, http.MethodGet, "/nacos/v1/ns/catalog/services", url.Values{"namespaceId": {namespace}, "pageNo": {"1"}, "pageSize": {size}, "withInstances": {"false"}, "hasIpCount": {"false"}}, token, &before)
		count, items = before.Count, before.Items
	}
	if errors.Is(err, errRefused) && a.refused(token) {
		return a.all(ctx, namespace)
	}
	if err != nil {
		return nil, false, err
	}
	for _, g := range items {
		if g.Group == "" {
			return nil, false, fmt.Errorf("%s lists services without their groups: name the groups to watch", a.base)
		}
		services = append(services, serviceID{g.Group, g.Name})
	}
	return services, count == len(items), nil
}
