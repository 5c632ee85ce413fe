package jwks

import (
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"meshlog.dev/services/mesh/jwks"
)

const set = `{"keys":[{"crv":"P-256","kty":"EC","x":"1","y":"2"}]}`

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

// serve starts an https server with a CA of its own, and returns its URL and a fetcher
// that trusts the CA and may reach it.
func serve(t *testing.T, h http.HandlerFunc) (string, *Fetcher) {
	t.Helper()
	s := httptest.NewTLSServer(h)
	t.Cleanup(s.Close)
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return s.URL, &Fetcher{CAFile: file, Networks: loopback, Proxy: func(*http.Request) (*url.URL, error) { return nil, nil }}
}

func TestFetch(t *testing.T) {
	var base, doc string
	hang := make(chan struct{})
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, set) }))
	defer plain.Close()
	base, f := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/set":
			fmt.Fprint(w, set)
		case "/huge":
			fmt.Fprint(w, strings.Repeat(" ", jwks.MaxSize), set)
		case "/private":
			fmt.Fprint(w, `{"keys":[{"kty":"oct","k":"s3cr3t"}]}`)
		case "/slow":
			<-hang
		case "/moved":
			http.Redirect(w, r, "/set", http.StatusFound)
		case "/plain":
			http.Redirect(w, r, plain.URL, http.StatusFound)
		case "/metadata":
			http.Redirect(w, r, "https://169.254.169.254/latest", http.StatusFound)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/.well-known/openid-configuration":
			fmt.Fprint(w, doc)
		default:
			http.NotFound(w, r)
		}
	})
	defer close(hang)
	f.timeout = time.Second
	for name, c := range map[string]struct{ issuer, uri, doc, err string }{
		"a set":                       {uri: base + "/set"},
		"a redirect":                  {uri: base + "/moved"},
		"discovery":                   {issuer: base, doc: `{"issuer":"` + base + `","jwks_uri":"` + base + `/set"}`},
		"discovery of another":        {issuer: base, doc: `{"issuer":"https://x","jwks_uri":"` + base + `/set"}`, err: "of another issuer"},
		"discovery to a file":         {issuer: base, doc: `{"issuer":"` + base + `","jwks_uri":"file:///etc/passwd"}`, err: "names no https URL"},
		"discovery to plain http":     {issuer: base, doc: `{"issuer":"` + base + `","jwks_uri":"` + plain.URL + `"}`, err: "names no https URL"},
		"discovery that is huge":      {issuer: base, doc: strings.Repeat(" ", maxDiscovery+1), err: "more than 65536 bytes"},
		"an issuer without a URL":     {issuer: "testing@example.com", err: "give a jwksUri"},
		"plain http":                  {uri: plain.URL, err: "no URL of https"},
		"huge":                        {uri: base + "/huge", err: "more than 262144 bytes"},
		"a symmetric key":             {uri: base + "/private", err: "has a private member"},
		"slow":                        {uri: base + "/slow", err: "took too long"},
		"not found":                   {uri: base + "/none", err: "status 404"},
		"a redirect to plain http":    {uri: base + "/plain", err: "another scheme"},
		"a redirect to link-local":    {uri: base + "/metadata", err: "169.254.169.254 is no public address"},
		"redirects without end":       {uri: base + "/loop", err: "more than 3 redirects"},
		"link-local":                  {uri: "https://169.254.169.254/latest", err: "no public address"},
		"a private network":           {uri: "https://10.0.0.1/set", err: "no public address"},
		"loopback, version 6":         {uri: "https://[::1]:1/set", err: "no public address"},
		"link-local within version 6": {uri: "https://[::ffff:169.254.169.254]/set", err: "no public address"},
	} {
		doc = c.doc
		keys, from, err := f.Fetch(t.Context(), jwks.Issuer{Issuer: c.issuer, URI: c.uri})
		switch {
		case c.err == "" && (err != nil || keys != set || !strings.HasPrefix(from, base)):
			t.Errorf("%s: %q of %q, %v", name, keys, from, err)
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "s3cr3t")):
			t.Errorf("%s: %v, want %q", name, err, c.err)
		}
	}
}

// A name that resolves to a loopback address is refused when it is connected, whatever
// it resolved to before (DNS rebinding), and nothing is accepted there.
func TestNameOfLoopback(t *testing.T) {
	base, f := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("the server was reached") })
	f.Networks = nil
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(base, "https://"))
	for _, uri := range []string{base, "https://localhost:" + port + "/set"} {
		if _, _, err := f.Fetch(t.Context(), jwks.Issuer{URI: uri}); err == nil || !strings.Contains(err.Error(), "no public address") {
			t.Errorf("%s: %v", uri, err)
		}
	}
}

// A certificate of an unknown CA is refused.
func TestUnknownCA(t *testing.T) {
	base, f := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("the server was asked") })
	f.CAFile = ""
	if _, _, err := f.Fetch(t.Context(), jwks.Issuer{URI: base}); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("got %v", err)
	}
}

func TestCheck(t *testing.T) {
	for address, public := range map[string]bool{
		"8.8.8.8": true, "2606:4700::1111": true,
		"127.0.0.1": false, "0.0.0.0": false, "10.1.1.1": false, "172.16.0.1": false, "192.168.1.1": false, "169.254.169.254": false, "100.64.0.1": false,
		"224.0.0.1": false, "255.255.255.255": false, "::": false, "::1": false, "fe80::1": false, "fe80::1%eth0": false, "fd00:ec2::254": false, "ff02::1": false,
		"::ffff:127.0.0.1": false, "64:ff9b::a9fe:a9fe": false, "2002:7f00:1::": false, "::127.0.0.1": false,
	} {
		if err := check(netip.MustParseAddr(address), nil); (err == nil) != public {
			t.Errorf("%s: %v", address, err)
		}
	}
	if err := check(netip.MustParseAddr("::ffff:127.0.0.1"), loopback); err != nil {
		t.Error(err)
	}
}
