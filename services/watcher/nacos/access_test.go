package nacos

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"meshlog.dev/deploy/testkit/certtest"
)

// accounts serves logins as Nacos' HTTP API.
type accounts struct {
	path string // of the login

	mu       sync.Mutex
	password string
	ttl      int
	logins   int
	valid    string // the token
	most     int
	running  int
}

func (a *accounts) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != a.path {
		http.NotFound(w, r)
		return
	}
	a.mu.Lock()
	a.logins++
	a.running++
	a.most = max(a.most, a.running)
	good := r.PostFormValue("username") == "mesh" && r.PostFormValue("password") == a.password
	if good {
		a.valid = fmt.Sprint("token-", a.logins)
	}
	answer := map[string]any{"accessToken": a.valid, "tokenTtl": a.ttl}
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		a.running--
		a.mu.Unlock()
	}()
	if !good {
		http.Error(w, "unknown user!", http.StatusForbidden)
		return
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func (a *accounts) change(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

// guard makes a server refuse requests without the valid token.
func (a *accounts) guard(s *scripted) {
	s.script = func(kind string, _ map[string]any) any {
		s.mu.Lock()
		token := s.tokens[len(s.tokens)-1]
		s.mu.Unlock()
		a.mu.Lock()
		defer a.mu.Unlock()
		if kind != serverCheck && kind != healthCheck && token != a.valid {
			return failure(codeRefused, "unknown user!")
		}
		return nil
	}
}

func account(t *testing.T, password string) Credentials {
	t.Helper()
	c := Credentials{UsernameFile: filepath.Join(t.TempDir(), "username"), PasswordFile: filepath.Join(t.TempDir(), "password")}
	for file, content := range map[string]string{c.UsernameFile: "mesh\n", c.PasswordFile: password + "\n"} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// NAC-12: the watcher logs in, by either path, once for all requests, again before the
// token ends, and the token is on every request.
func TestNAC12Login(t *testing.T) {
	for _, path := range logins {
		t.Run(path, func(t *testing.T) {
			a := &accounts{path: path, password: "secret", ttl: 3600}
			s := newScriptedWeb(t, a)
			a.guard(s)
			for i := range 40 {
				s.set(id(fmt.Sprint("s", i)), at("10.0.0.1"))
			}
			o := follow(t, Config{Addresses: []string{s.address()}, Credentials: account(t, "secret")}, quick())
			o.awaitTrue(t, "services", func() bool { return len(o.services()) == 40 })
			a.change(func() {
				if a.logins != 1 || a.most != 1 {
					t.Errorf("%d logins, %d at a time", a.logins, a.most)
				}
			})
		})
	}
}

// NAC-12: a token is renewed when 80 % of its lifetime are over, so that none is refused.
func TestNAC12Renewal(t *testing.T) {
	a := &accounts{path: logins[0], password: "secret", ttl: 1}
	s := newScriptedWeb(t, a)
	a.guard(s)
	s.set(id("web"), at("10.0.0.1"))
	o := follow(t, Config{Addresses: []string{s.address()}, Credentials: account(t, "secret")}, quick())
	start := time.Now()
	o.awaitTrue(t, "logins", func() bool { a.mu.Lock(); defer a.mu.Unlock(); return a.logins == 3 })
	if took := time.Since(start); took < 1500*time.Millisecond {
		t.Errorf("three logins in %s", took)
	}
	if o.errs() != "<nil>" {
		t.Errorf("runs ended with %s", o.errs())
	}
}

// NAC-12, REG-14: a token that the server refuses is replaced, with the files of then.
func TestNAC12Revoked(t *testing.T) {
	a := &accounts{path: logins[0], password: "secret", ttl: 3600}
	s := newScriptedWeb(t, a)
	a.guard(s)
	s.set(id("web"), at("10.0.0.1"))
	c := account(t, "secret")
	link, err := dial(t.Context(), server{base: "http://" + s.address(), grpc: fmt.Sprint("127.0.0.1:", s.port+grpcOffset)}, DefaultNamespace, &c, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer link.close()
	if _, _, err := link.list(t.Context(), DefaultNamespace, []string{DefaultGroup}); err != nil {
		t.Fatal(err)
	}
	a.change(func() { a.valid, a.password = "another", "new" })
	if _, _, err := link.list(t.Context(), DefaultNamespace, []string{DefaultGroup}); err == nil || !strings.Contains(err.Error(), errRefused.Error()) {
		t.Errorf("a token that was refused at once is replaced too often: %v", err)
	}
	link.access.loggedIn = time.Now().Add(-loginPause)
	if err := os.WriteFile(c.PasswordFile, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, _, err := link.list(t.Context(), DefaultNamespace, []string{DefaultGroup}); err != nil || len(got) != 1 {
		t.Errorf("%v, %v", got, err)
	}
	a.change(func() {
		if a.logins != 2 {
			t.Errorf("%d logins", a.logins)
		}
	})
}

// NAC-12, REG-10: without an account, or with a wrong one, the source is down, the reason
// names the file, no secret is in it, and nothing is removed.
func TestNAC12Refused(t *testing.T) {
	a := &accounts{path: logins[0], password: "secret", ttl: 3600}
	s := newScriptedWeb(t, a)
	a.guard(s)
	s.set(id("web"), at("10.0.0.1"))
	c := account(t, "wr0ng")
	o := follow(t, Config{Addresses: []string{s.address()}, Credentials: c}, quick())
	o.awaitTrue(t, "an error", func() bool { return strings.Contains(o.errs(), "log in with "+c.UsernameFile) })
	if got := o.errs(); strings.Contains(got, "wr0ng") || !strings.Contains(got, "unknown user!") {
		t.Errorf("the error is %s", got)
	}
	if err := os.WriteFile(c.PasswordFile, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	o.awaitEndpoints(t, "web", "10.0.0.1")

	none := follow(t, Config{Addresses: []string{s.address()}}, quick())
	none.awaitTrue(t, "an error", func() bool { return strings.Contains(none.errs(), "the server refuses the credentials") })
	if len(none.lists) > 0 {
		t.Error("listed without an account")
	}
}

// NAC-11: all groups are read over HTTP: by the API of Nacos 3, else by the one before. A
// server that does not say groups is an error.
func TestNAC11Groups(t *testing.T) {
	page := func(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }
	items := []map[string]any{{"name": "web", "groupName": DefaultGroup}, {"name": "web", "groupName": "g"}}
	for name, c := range map[string]struct {
		path  string
		page  any
		fails string
	}{
		"3":        {"/nacos/v3/admin/ns/service/list", map[string]any{"code": 0, "data": map[string]any{"totalCount": 2, "pageItems": items}}, ""},
		"2":        {"/nacos/v1/ns/catalog/services", map[string]any{"count": 2, "serviceList": items}, ""},
		"r-nacos":  {"/nacos/v1/ns/catalog/services", map[string]any{"count": 1, "serviceList": []map[string]any{{"name": "web"}}}, "lists services without their groups: name the groups to watch"},
		"no admin": {"", nil, "no such path"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScriptedWeb(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != c.path {
					http.NotFound(w, r)
					return
				}
				if ns := r.URL.Query().Get("namespaceId"); ns != DefaultNamespace {
					t.Errorf("namespace %q", ns)
				}
				page(w, c.page)
			}))
			s.set(id("web"), at("10.0.0.1"))
			s.set(serviceID{"g", "web"}, at("10.0.0.2"))
			l := quick()
			l.down = 200 * time.Millisecond
			o := follow(t, Config{Addresses: []string{s.address()}, Groups: []string{AllGroups}}, l)
			if c.fails != "" {
				o.awaitTrue(t, "an error", func() bool { return strings.Contains(o.errs(), c.fails) })
				return
			}
			o.awaitEndpoints(t, "web", "10.0.0.1")
			o.awaitEndpoints(t, "g@@web", "10.0.0.2")
		})
	}
	s := newScripted(t)
	s.set(id("web"), at("10.0.0.1"))
	s.set(serviceID{"g", "api"}, at("10.0.0.2"))
	s.set(serviceID{"h", "api"}, at("10.0.0.3"))
	o := follow(t, Config{Addresses: []string{s.address()}, Groups: []string{DefaultGroup, "g"}}, quick())
	o.awaitServices(t, "g@@api", "web")
}

// gRPC over TLS: the server's certificate is checked, and the watcher shows its own.
func TestTLS(t *testing.T) {
	ca := certtest.NewCA("ca")
	pair := ca.Server("nacos", time.Now().Add(time.Hour))
	certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	s := newScriptedWeb(t, nil, grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{certificate}, ClientCAs: ca.Pool(), ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12,
	})))
	s.set(id("web"), at("10.0.0.1"))
	client := ca.Client("watcher")
	dir := t.TempDir()
	c := Credentials{
		CAFile: certtest.WriteFile(t, dir, "ca", ca.PEM()), CertFile: certtest.WriteFile(t, dir, "cert", client.Cert), KeyFile: certtest.WriteFile(t, dir, "key", client.Key),
	}
	o := follow(t, Config{Addresses: []string{s.address()}, TLS: true, Credentials: c}, quick())
	o.awaitEndpoints(t, "web", "10.0.0.1")
	l := quick()
	l.down = 200 * time.Millisecond
	other := Credentials{CAFile: certtest.WriteFile(t, dir, "other", certtest.NewCA("other").PEM())}
	stranger := follow(t, Config{Addresses: []string{s.address()}, TLS: true, Credentials: other}, l)
	stranger.awaitTrue(t, "an error", func() bool { return strings.Contains(stranger.errs(), "certificate signed by unknown authority") })
}

// A configuration that makes no sense is refused, with all reasons.
func TestConfig(t *testing.T) {
	c := Config{Addresses: []string{"a:b"}, Groups: []string{AllGroups, "g"}, Namespace: "日本", Credentials: Credentials{UsernameFile: "u", KeyFile: "k"}}
	_, err := New(c)
	got := strings.Split(fmt.Sprint(err), "\n")
	if len(got) != 5 || slices.Contains(got, "<nil>") {
		t.Errorf("%q", got)
	}
	missing := filepath.Join(t.TempDir(), "missing")
	for _, c := range []Credentials{{UsernameFile: missing, PasswordFile: missing}, {CAFile: missing}, {CertFile: missing, KeyFile: missing}} {
		if err := (Config{Addresses: []string{"nacos"}, Credentials: c}).Verify(); err == nil || !strings.Contains(err.Error(), missing) {
			t.Errorf("%v", err)
		}
	}
}
