package jwks

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"syscall"
	"time"

	"meshlog.dev/services/mesh/jwks"
)

// Limits of a fetch: the servers that policies name are strangers.
const (
	fetchTimeout  = 10 * time.Second
	maxDiscovery  = 64 << 10
	maxHeaders    = 32 << 10
	maxRedirects  = 3
	maxQuotedText = 200
)

// Fetcher fetches key sets by https. It is safe for concurrent use.
type Fetcher struct {
	// CAFile has CAs that are trusted beside those of the system, as PEM; empty: none. It
	// is read for each fetch.
	CAFile string
	// Networks may be reached although they are no public ones (POL-12).
	Networks []netip.Prefix
	// Proxy returns the proxy of a request; nil: that of the environment, as in Go.
	Proxy func(*http.Request) (*url.URL, error)

	timeout time.Duration // 0: fetchTimeout
}

// Fetch returns the public keys of an issuer as the log has them, and where they were.
// Errors do not quote what a server has sent.
func (f *Fetcher) Fetch(ctx context.Context, i jwks.Issuer) (keys, from string, err error) {
	timeout := f.timeout
	if timeout == 0 {
		timeout = fetchTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	source, discovery, ok := i.Source()
	if !ok && discovery {
		return "", "", fmt.Errorf("the issuer %s is no https URL, so it has no discovery document: give a jwksUri", quoted(i.Issuer))
	}
	if !ok {
		return "", "", fmt.Errorf("%s is no URL of https", quoted(source))
	}
	client, done, err := f.client()
	if err != nil {
		return "", "", err
	}
	defer done()
	if discovery {
		if source, err = discover(ctx, client, source, i.Issuer); err != nil {
			return "", "", err
		}
	}
	set, err := get(ctx, client, source, jwks.MaxSize)
	if err != nil {
		return "", "", err
	}
	if keys, err = jwks.Public(set); err != nil {
		return "", "", fmt.Errorf("the answer of %s %w", quoted(source), err)
	}
	return keys, source, nil
}

// discover returns the URL of the key set that the discovery document of an issuer names.
func discover(ctx context.Context, client *http.Client, source, issuer string) (string, error) {
	b, err := get(ctx, client, source, maxDiscovery)
	if err != nil {
		return "", err
	}
	var d struct {
		Issuer string `json:"issuer"`
		URI    string `json:"jwks_uri"`
	}
	switch err := json.Unmarshal(b, &d); {
	case err != nil:
		return "", fmt.Errorf("the answer of %s is no discovery document", quoted(source))
	case d.Issuer != issuer: // OpenID Connect Discovery 1.0, section 4.3
		return "", fmt.Errorf("the discovery document at %s is of another issuer than %s", quoted(source), quoted(issuer))
	case !jwks.IsSource(d.URI):
		return "", fmt.Errorf("the discovery document at %s names no https URL as jwks_uri", quoted(source))
	}
	return d.URI, nil
}

// get returns the body of an answer.
func get(ctx context.Context, client *http.Client, source string, most int64) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, source, nil)
	if err != nil {
		return nil, fmt.Errorf("%s is no URL", quoted(source))
	}
	r.Header.Set("Accept", "application/json")
	r.Header.Set("User-Agent", "meshlog")
	resp, err := client.Do(r)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", quoted(source), reason(err))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers with status %d", quoted(source), resp.StatusCode)
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the answer of %s: %w", quoted(source), reason(err))
	case int64(len(b)) > most:
		return nil, fmt.Errorf("the answer of %s has more than %d bytes", quoted(source), most)
	}
	return b, nil
}

// reason returns why a request failed, without the URL, which a redirect may have
// chosen.
func reason(err error) error {
	if e := (*url.Error)(nil); errors.As(err, &e) {
		err = e.Err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New("the server took too long")
	}
	return err
}

func quoted(s string) string {
	if len(s) > maxQuotedText {
		s = s[:maxQuotedText] + "..."
	}
	return fmt.Sprintf("%q", s)
}

// client returns a client for one fetch, and what closes its connections.
func (f *Fetcher) client() (*http.Client, func(), error) {
	roots, err := f.roots()
	if err != nil {
		return nil, nil, err
	}
	transport := func(d net.Dialer) *http.Transport {
		return &http.Transport{
			DialContext: d.DialContext, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots},
			MaxResponseHeaderBytes: maxHeaders, DisableKeepAlives: true, DisableCompression: true, ForceAttemptHTTP2: true,
		}
	}
	proxy := f.Proxy
	if proxy == nil {
		proxy = http.ProxyFromEnvironment
	}
	c := &chooser{proxy: proxy, networks: f.Networks, direct: transport(net.Dialer{Control: f.control}), proxied: transport(net.Dialer{})}
	c.proxied.Proxy = proxy
	done := func() { c.direct.CloseIdleConnections(); c.proxied.CloseIdleConnections() }
	return &http.Client{Transport: c, CheckRedirect: redirect}, done, nil
}

// redirect follows a few redirects, to https only.
func redirect(r *http.Request, via []*http.Request) error {
	switch {
	case len(via) > maxRedirects:
		return fmt.Errorf("more than %d redirects", maxRedirects)
	case !jwks.IsSource(r.URL.String()):
		return errors.New("a redirect to another scheme than https")
	}
	return nil
}

// chooser sends requests through a proxy where there is one. A proxy resolves the names
// itself and may be at a private address, so only connections without one can be checked.
type chooser struct {
	proxy           func(*http.Request) (*url.URL, error)
	networks        []netip.Prefix
	direct, proxied *http.Transport
}

// RoundTrip implements http.RoundTripper.
func (c *chooser) RoundTrip(r *http.Request) (*http.Response, error) {
	if at, err := c.proxy(r); err != nil {
		return nil, err
	} else if at == nil {
		return c.direct.RoundTrip(r)
	}
	if a, err := netip.ParseAddr(r.URL.Hostname()); err == nil {
		if err := check(a, c.networks); err != nil {
			return nil, err
		}
	}
	return c.proxied.RoundTrip(r)
}

// Verify returns an error if CAFile cannot be used.
func (f *Fetcher) Verify() error {
	_, err := f.roots()
	return err
}

// roots returns the trusted CAs; nil: those of the system.
func (f *Fetcher) roots() (*x509.CertPool, error) {
	if f.CAFile == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(f.CAFile)
	if err != nil {
		return nil, fmt.Errorf("CAs of issuers: %w", err)
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("CAs of issuers: %s has no certificate", f.CAFile)
	}
	return roots, nil
}

// control checks the address of each connection after its name was resolved, so that a
// name whose address changes reaches nothing (DNS rebinding).
func (f *Fetcher) control(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return errors.New("the address cannot be checked")
	}
	return check(at.Addr(), f.Networks)
}

// reserved are networks in which no public server is, beside those that netip knows;
// some carry another address.
var reserved = prefixes(
	"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
	"::/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "fec0::/10",
)

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// check returns an error for an address that policies may not make this process reach.
func check(a netip.Addr, allowed []netip.Prefix) error {
	a = a.Unmap().WithZone("")
	for _, p := range allowed {
		if p.Contains(a) {
			return nil
		}
	}
	public := a.IsGlobalUnicast() && !a.IsPrivate() && !a.IsLoopback()
	for _, p := range reserved {
		public = public && !p.Contains(a)
	}
	if !public {
		return fmt.Errorf("%s is no public address, and --jwks-networks does not allow it", a)
	}
	return nil
}
