package process

import (
	"context"
	"errors"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
)

// newAdmin returns an admin server for requests without a connection.
func newAdmin(t *testing.T) *Admin {
	t.Helper()
	a, err := NewAdmin("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.listener.Close() })
	if a.levels, err = newLogLevels("info"); err != nil {
		t.Fatal(err)
	}
	return a
}

// request sends a request; from is the address of the client, headers are pairs.
func request(a *Admin, method, url, from string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, url, nil)
	r.RemoteAddr = from
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	a.handler().ServeHTTP(w, r)
	return w
}

func TestDebugPagesAreGuarded(t *testing.T) {
	const here, there = "127.0.0.1:40000", "192.0.2.7:40000"
	const local, remote = "http://127.0.0.1:15014", "http://mesh.example:15014"
	for _, c := range []struct {
		name, url, from string
		headers         []string
		noToken         bool
		code            int
	}{
		{"here", local, here, nil, true, 200},
		{"here by IPv6", "http://[::1]:15014", "[::1]:40000", nil, true, 200},
		{"here by name", "http://localhost:15014", here, nil, true, 200},
		{"here by another name", remote, here, nil, true, 403},
		{"by a proxy here", local, here, []string{"X-Forwarded-For", "192.0.2.7"}, true, 403},
		{"there", remote, there, nil, true, 403},
		{"there with a token, but no token is set", remote, there, []string{"Authorization", "Bearer "}, true, 403},
		{"there without the token", remote, there, nil, false, 401},
		{"there with another token", remote, there, []string{"Authorization", "Bearer open"}, false, 401},
		{"there with the token in another scheme", remote, there, []string{"Authorization", "Basic sesame"}, false, 401},
		{"there with the token", remote, there, []string{"Authorization", "Bearer sesame"}, false, 200},
		{"by a proxy with the token", local, here, []string{"X-Forwarded-For", "192.0.2.7", "Authorization", "Bearer sesame"}, false, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAdmin(t)
			a.Pprof = true
			a.Report("frontend", func() any { return 1 })
			if !c.noToken {
				a.TokenFile = settingsFile(t, "sesame\n")
			}
			for _, path := range []string{"/debug/frontend", "/debug/log", "/debug/pprof/"} {
				if w := request(a, "GET", c.url+path, c.from, c.headers...); w.Code != c.code {
					t.Errorf("GET %s = %d %s, want %d", path, w.Code, w.Body, c.code)
				}
			}
			for _, path := range []string{"/healthz", "/metrics", "/"} {
				if w := request(a, "GET", c.url+path, c.from); w.Code != 200 {
					t.Errorf("GET %s = %d, want 200: it is open", path, w.Code)
				}
			}
		})
	}
}

// A web page of another site cannot make a local browser change or read anything
// (XDS-10).
func TestDebugPagesAndOtherSites(t *testing.T) {
	const here = "127.0.0.1:40000"
	for _, c := range []struct {
		name, url string
		headers   []string
		code      int
	}{
		{"curl", "http://127.0.0.1:15014", nil, 200},
		{"a page of this server", "http://localhost:15014", []string{"Sec-Fetch-Site", "same-origin", "Origin", "http://localhost:15014"}, 200},
		{"an address that the user typed", "http://localhost:15014", []string{"Sec-Fetch-Site", "none"}, 200},
		{"a form of another site", "http://127.0.0.1:15014", []string{"Sec-Fetch-Site", "cross-site", "Origin", "https://evil.example"}, 403},
		{"an older browser", "http://127.0.0.1:15014", []string{"Origin", "https://evil.example"}, 403},
		{"a frame without an origin", "http://127.0.0.1:15014", []string{"Origin", "null"}, 403},
		{"another port of this machine", "http://localhost:15014", []string{"Sec-Fetch-Site", "same-site", "Origin", "http://localhost:3000"}, 403},
		{"another port, an older browser", "http://localhost:15014", []string{"Origin", "http://localhost:3000"}, 403},
		{"another scheme", "http://localhost:15014", []string{"Origin", "https://localhost:15014"}, 403},
		{"a name that now leads here (DNS rebinding)", "http://evil.example:15014", []string{"Sec-Fetch-Site", "same-origin", "Origin", "http://evil.example:15014"}, 403},
		{"another site with the token", "http://127.0.0.1:15014", []string{"Origin", "https://grafana.example", "Authorization", "Bearer sesame"}, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAdmin(t)
			if c.code == 200 {
				a.TokenFile = settingsFile(t, "sesame\n")
			}
			for _, method := range []string{"GET", "PUT", "POST"} {
				if w := request(a, method, c.url+"/debug/log?level=warn", here, c.headers...); w.Code != c.code {
					t.Errorf("%s = %d %s, want %d", method, w.Code, w.Body, c.code)
				}
			}
			if got := a.levels.report(); (got.All == "warn") != (c.code == 200) {
				t.Errorf("the log levels are %v", got)
			}
		})
	}
}

// A client that sends nothing, or stops within a request, loses its connection
// (XDS-10).
func TestAdminEndsIdleConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			name, sends string
			after       time.Duration
		}{
			{"sends nothing", "", headerTimeout},
			{"stops within the header", "GET /healthz HTTP/1.1\r\nHost: x\r\n", headerTimeout},
			{"stops within the body", "POST /debug/log HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\nlevel", requestTimeout},
			{"sends no further request", "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", idleTimeout},
		} {
			a := newAdmin(t)
			server, l := a.server(slog.New(slog.DiscardHandler)), newPipe()
			served := make(chan error)
			go func() { served <- server.Serve(l) }()
			client := l.dial()
			began := time.Now()
			if _, err := client.Write([]byte(c.sends)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, client); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			// net/http lingers for up to 500 ms before it closes a connection whose request it did not read.
			if took := time.Since(began); took < c.after || took > c.after+500*time.Millisecond {
				t.Errorf("a client that %s is disconnected after %s, want %s", c.name, took, c.after)
			}
			server.Close()
			if err := <-served; !errors.Is(err, http.ErrServerClosed) {
				t.Error(err)
			}
		}
	})
}

// pipe is a listener in memory for one connection.
type pipe struct {
	client, server net.Conn
	conns          chan net.Conn
	once           sync.Once
}

func newPipe() *pipe {
	p := &pipe{conns: make(chan net.Conn, 1)}
	p.client, p.server = net.Pipe()
	return p
}

func (p *pipe) dial() net.Conn {
	p.conns <- localConn{p.server}
	return p.client
}

func (p *pipe) Accept() (net.Conn, error) {
	if c, ok := <-p.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p *pipe) Close() error {
	p.once.Do(func() { close(p.conns) })
	return nil
}

func (p *pipe) Addr() net.Addr { return p.server.LocalAddr() }

// localConn is a connection that comes from this machine.
type localConn struct{ net.Conn }

func (localConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 40000} }

func TestTokenIsReadAgain(t *testing.T) {
	a := newAdmin(t)
	a.Report("frontend", func() any { return 1 })
	a.TokenFile = settingsFile(t, "first")
	ask := func(token string) int {
		return request(a, "GET", "http://mesh.example/debug/frontend", "192.0.2.7:1", "Authorization", "Bearer "+token).Code
	}
	if err := os.WriteFile(a.TokenFile, []byte("second\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if ask("first") != 401 || ask("second") != 200 {
		t.Error("the old token is accepted")
	}
	if err := os.Remove(a.TokenFile); err != nil {
		t.Fatal(err)
	}
	if ask("second") != 401 || ask("") != 401 {
		t.Error("a token that cannot be read opens the pages")
	}
}

func TestLogLevelIsSet(t *testing.T) {
	a := newAdmin(t)
	at := func(method, query string) *httptest.ResponseRecorder {
		return request(a, method, "http://localhost/debug/log"+query, "127.0.0.1:1")
	}
	if w := at("PUT", "?level=frontend=debug"); w.Code != 200 || !strings.Contains(w.Body.String(), `"frontend": "debug"`) {
		t.Errorf("PUT = %d %s", w.Code, w.Body)
	}
	if w := at("POST", "?level=warn"); w.Code != 200 || !strings.Contains(w.Body.String(), `"frontend": "warn"`) {
		t.Errorf("POST = %d %s", w.Code, w.Body)
	}
	if w := at("GET", ""); w.Code != 200 || !strings.Contains(w.Body.String(), `"all": "warn"`) {
		t.Errorf("GET = %d %s", w.Code, w.Body)
	}
	for _, query := range []string{"", "?level=frontent=debug", "?level=loud"} {
		if w := at("PUT", query); w.Code != 400 || !strings.HasPrefix(w.Body.String(), "level: no ") {
			t.Errorf("PUT %q = %d %s", query, w.Code, w.Body)
		}
	}
	if w := at("DELETE", ""); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("DELETE = %d", w.Code)
	}
}

func TestReadyzWarns(t *testing.T) {
	a := newAdmin(t)
	a.Ready("frontend", func() error { return nil })
	a.Warn("certificates", func() error { return errors.New("ended") })
	a.Warn("disk", func() error { return errors.New("full\nnearly") })
	w := request(a, "GET", "http://mesh.example/readyz", "192.0.2.7:1")
	want := "ok\nwarning: certificates: ended\nwarning: disk: full\nwarning: nearly\n"
	if w.Code != 200 || w.Body.String() != want {
		t.Errorf("GET /readyz = %d %q", w.Code, w.Body)
	}
}

// The number of concurrent pages is limited.
func TestDebugPagesAreBounded(t *testing.T) {
	a := newAdmin(t)
	inside, leave := make(chan bool), make(chan bool)
	a.Page("slow", "", func(http.ResponseWriter, *http.Request) { inside <- true; <-leave })
	ended := make(chan int)
	get := func() int { return request(a, "GET", "http://localhost/debug/slow", "127.0.0.1:1").Code }
	for range maxPages {
		go func() { ended <- get() }()
		<-inside
	}
	if code := get(); code != 503 {
		t.Errorf("one page more = %d, want 503", code)
	}
	close(leave)
	for range maxPages {
		if code := <-ended; code != 200 {
			t.Errorf("a page = %d", code)
		}
	}
}

func TestWriteJSONList(t *testing.T) {
	for _, c := range []struct {
		items []any
		want  string
	}{
		{nil, "[\n]\n"},
		{[]any{1, map[string]int{"a": 1}}, "[\n1,\n{\n  \"a\": 1\n}\n]\n"},
		{[]any{&reportv1.ProxyReport{Id: "p"}}, "[\n{\n  \"id\": \"p\"\n}\n]\n"},
	} {
		var items iter.Seq[any] = func(yield func(any) bool) {
			for _, i := range c.items {
				if !yield(i) {
					return
				}
			}
		}
		w := httptest.NewRecorder()
		WriteJSONList(w, items)
		if diff := cmp.Diff(c.want, w.Body.String()); diff != "" {
			t.Error(diff)
		}
	}
}

// Flags configure the admin server.
func TestAdminSettings(t *testing.T) {
	token := settingsFile(t, "sesame")
	err := execute(t, Spec{Use: "test", Settings: none{}, Run: func(_ context.Context, p *Process) error {
		if code, _ := get(t, p.Admin, "/debug/pprof/"); code != 200 {
			t.Errorf("GET /debug/pprof/ = %d with --pprof", code)
		}
		if p.Admin.TokenFile != token {
			t.Errorf("the token is in %q, want %q", p.Admin.TokenFile, token)
		}
		return nil
	}}, "--pprof", "--admin-token-file", token)
	if err != nil {
		t.Fatal(err)
	}
}

// What clients make the HTTP server log is logged once a second (XDS-11).
func TestAdminLogIsBounded(t *testing.T) {
	var out strings.Builder
	srv := newAdmin(t).server(slog.New(slog.NewTextHandler(&out, nil)))
	for range 100 {
		srv.ErrorLog.Print("http: URL query contains semicolon")
	}
	if n := strings.Count(out.String(), "semicolon"); n == 0 || n > 2 {
		t.Errorf("100 errors make %d lines:\n%s", n, out.String())
	}
}
