package web_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"html"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"meshlog.dev/events"
	"meshlog.dev/services/console/watch"
	"meshlog.dev/services/console/web"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/mesh/permit"
	operate "meshlog.dev/services/operate/command"
	"meshlog.dev/services/roles/console"
)

// operator returns the file with the key of alice, and a MeshPolicy that names her.
func operator(t *testing.T) (file, policy string) {
	t.Helper()
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "operator-alice.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return file, fmt.Sprintf(`apiVersion: meshlog.dev/v1
kind: MeshPolicy
metadata: {name: default}
spec:
  operators: [{name: alice, keys: [%q]}]
`, permit.KeyText(permit.Key(public)))
}

var (
	tokenField = regexp.MustCompile(`name="token" value="([A-Z0-9]+)"`)
	heldID     = regexp.MustCompile(`/act/approve\?id=(hold-[^"]+)"`)
	wordID     = regexp.MustCompile(`/act/(?:release|unpin)\?id=([^"]+)"`)
)

// person uses a console with a browser's cookies.
type person struct {
	*mesh
	url    string
	client *http.Client
}

func (m *mesh) person(url string) *person {
	m.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		m.Fatal(err)
	}
	return &person{m, url, &http.Client{Jar: jar}}
}

func (p *person) read(r *http.Response, err error) (int, string) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		p.Fatal(err)
	}
	return r.StatusCode, html.UnescapeString(string(b))
}

// look returns a page.
func (p *person) look(path string) string {
	p.Helper()
	status, body := p.read(p.client.Get(p.url + path))
	if status != http.StatusOK {
		p.Fatalf("%s: status %d:\n%s", path, status, body)
	}
	return body
}

// confirm presses the button of a page.
func (p *person) confirm(path, body, reason string) (int, string) {
	p.Helper()
	token := tokenField.FindStringSubmatch(body)
	if token == nil {
		p.Fatalf("%s has no form to confirm:\n%s", path, body)
	}
	path, _, _ = strings.Cut(path, "?")
	return p.read(p.client.PostForm(p.url+path, url.Values{"token": {token[1]}, "reason": {reason}}))
}

// does looks at the page of an act, which must have the texts, and confirms it.
func (p *person) does(path, reason string, want ...string) string {
	p.Helper()
	body := p.look(path)
	for _, w := range want {
		if !strings.Contains(body, w) {
			p.Errorf("%s lacks %q:\n%s", path, w, body)
		}
	}
	status, done := p.confirm(path, body, reason)
	if status != http.StatusOK || !strings.Contains(done, "is on the log") || !strings.Contains(done, "alice, signed") || !strings.Contains(done, reason) {
		p.Fatalf("%s: status %d:\n%s", path, status, done)
	}
	return done
}

// An operator approves a loss, rolls back, freezes, pins and ends all of it in the console: each
// act shows what it would change, asks once more, and is a record with the operator's name.
func TestActs(t *testing.T) {
	m := start(t)
	s := console.DefaultSettings()
	s.OperatorKey = m.key
	m.url = m.console(s, t.TempDir())
	p := m.person(m.url)

	held := heldID.FindStringSubmatch(m.until("/problems", "Held back by the guard"))
	if held == nil {
		t.Fatal("the page of problems has no link to approve the loss")
	}
	p.does("/act/approve?id="+held[1], "", "10 objects change", "Resource default/lost-3", "meshlog approve "+held[1])

	rollback := address("/act/rollback", "version", m.first, "object", "VirtualService/demo/shop")
	body := p.look(rollback)
	if status, again := p.confirm(rollback, body, " "); status != http.StatusBadRequest || !strings.Contains(again, "Say why") {
		t.Errorf("without a reason: status %d:\n%s", status, again)
	}
	p.does(rollback, "503 since the weights", "1 object changes", "weight: 50 -> 90", "meshlog rollback "+m.first+" VirtualService/demo/shop --reason ...")
	m.until(address("/object", "key", "VirtualService/demo/shop"), "weight: 90\n")

	// What the release would change differs from what was shown: nothing is written.
	id := wordID.FindStringSubmatch(m.until("/problems", "rolled back by alice"))[1]
	release := "/act/release?id=" + id
	shown := p.look(release)
	m.write("routes.yaml", route(30, 70))
	m.until(release, "90 -&gt; 30")
	status, again := p.confirm(release, shown, "")
	if status != http.StatusConflict || !strings.Contains(again, "Nothing was written") || !strings.Contains(again, "90 -> 30") {
		t.Fatalf("after another change: status %d:\n%s", status, again)
	}
	if status, done := p.confirm(release, again, ""); status != http.StatusOK || !strings.Contains(done, "alice, signed") {
		t.Fatalf("with the new page: status %d:\n%s", status, done)
	}
	m.until(address("/object", "key", "VirtualService/demo/shop"), "weight: 30\n")

	p.does("/act/freeze?source=file/default", "a deployment runs", "0 objects change")
	id = wordID.FindStringSubmatch(m.until("/problems", "is frozen by alice"))[1]
	p.does("/act/release?id="+id, "")
	p.does(address("/act/pin", "version", m.first, "proxies", "namespace=demo"), "compare", "weight: 30 -> 90", "--proxies namespace=demo")
	id = wordID.FindStringSubmatch(m.until("/problems", "are pinned by alice"))[1]
	p.does("/act/unpin?id="+id, "", "weight: 90 -> 30")
	m.until("/problems", "Problems in the configuration")
}

// attackRig is the handler of a console in the test's process, whose requests the test makes.
type attackRig struct {
	*testing.T
	h   http.Handler
	log events.Reader
}

func (m *mesh) attack(key, token string) *attackRig {
	m.Helper()
	conn, err := bus.ConnectWait(m.Context(), m.bus(bus.Operator()))
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(conn.Close)
	target := operate.On(conn, process.DefaultDomain)
	known := watch.New(nil, nil, slog.New(slog.DiscardHandler))
	w, err := known.Open(m.Context(), target)
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() {
		if err := target.Close(); err != nil {
			m.Error(err)
		}
	})
	s, err := web.New(token, slog.New(slog.DiscardHandler))
	if err != nil {
		m.Fatal(err)
	}
	s.OperatorKey, s.Watch = key, known
	s.Show(w)
	return &attackRig{m.T, s.Handler(), w.Past.Log}
}

// tokenFile returns a file with the token of readers.
func (m *mesh) tokenFile() string {
	m.Helper()
	path := filepath.Join(m.TempDir(), "token")
	if err := os.WriteFile(path, []byte("open sesame\n"), 0o600); err != nil {
		m.Fatal(err)
	}
	return path
}

// attackRequest is a request; each field differs from what a browser on this machine sends.
type attackRequest struct {
	method, path, from, host, token, cookie string
	headers                                 map[string]string
}

const (
	localHost, localFrom = "127.0.0.1:15016", "127.0.0.1:5000"
	actCookieName        = "meshlog-console-act"
)

func (a *attackRig) send(q attackRequest) *httptest.ResponseRecorder {
	r := httptest.NewRequest(q.method, q.path, strings.NewReader(url.Values{"token": {q.token}, "reason": {"attack"}}.Encode()))
	r.RemoteAddr, r.Host = q.from, q.host
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if q.cookie != "" {
		r.AddCookie(&http.Cookie{Name: actCookieName, Value: q.cookie})
	}
	for k, v := range q.headers {
		r.Header.Set(k, v)
	}
	w := httptest.NewRecorder()
	a.h.ServeHTTP(w, r)
	return w
}

// form gets the page of an act as a browser on this machine, and returns what confirms it.
func (a *attackRig) form(path string, headers map[string]string) (token, cookie string) {
	a.Helper()
	w := a.send(attackRequest{method: "GET", path: path, from: localFrom, host: localHost, headers: headers})
	found := tokenField.FindStringSubmatch(w.Body.String())
	result := w.Result()
	defer result.Body.Close()
	if found == nil || len(result.Cookies()) != 1 {
		a.Fatalf("%s: status %d, cookies %v:\n%s", path, w.Code, result.Cookies(), w.Body)
	}
	c := result.Cookies()[0]
	if c.SameSite != http.SameSiteStrictMode || !c.HttpOnly || c.Path != "/act" {
		a.Errorf("the cookie of forms is %v", c)
	}
	return found[1], c.Value
}

// last returns the position of the last record that is no Alive: the watcher of the
// files appends one every 10 seconds.
func (a *attackRig) last(ctx context.Context) uint64 {
	a.Helper()
	b, err := a.log.Bounds(ctx)
	if err != nil {
		a.Fatal(err)
	}
	for seq := b.Last; seq >= b.First; seq-- {
		r, err := a.log.Get(ctx, seq)
		if err != nil {
			a.Fatal(err)
		}
		if _, beat := r.Event.Body.(*events.Alive); !beat {
			return seq
		}
	}
	return 0
}

// Requests that must change nothing, whatever they bring.
func TestActAttacks(t *testing.T) {
	m := start(t)
	acting, guarded, reading := m.attack(m.key, ""), m.attack(m.key, m.tokenFile()), m.attack("", "")
	const path = "/act/freeze?source=file/default"
	bearer := map[string]string{"Authorization": "Bearer open sesame"}
	for name, c := range map[string]struct {
		a      *attackRig
		change func(*attackRequest)
		status int
	}{
		"a form of another site": {acting, func(q *attackRequest) {
			q.headers = map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
		}, 403},
		"of a sister site":                {acting, func(q *attackRequest) { q.headers = map[string]string{"Sec-Fetch-Site": "same-site"} }, 403},
		"an old browser, another site":    {acting, func(q *attackRequest) { q.headers = map[string]string{"Origin": "http://evil.example"} }, 403},
		"an opaque origin":                {acting, func(q *attackRequest) { q.headers = map[string]string{"Origin": "null"} }, 403},
		"another port of this machine":    {acting, func(q *attackRequest) { q.headers = map[string]string{"Origin": "http://127.0.0.1:9999"} }, 403},
		"a rebound name":                  {acting, func(q *attackRequest) { q.host = "evil.example:15016" }, 403},
		"a forwarded request":             {acting, func(q *attackRequest) { q.headers = map[string]string{"X-Forwarded-For": "127.0.0.1"} }, 403},
		"no token":                        {acting, func(q *attackRequest) { q.token = "" }, 403},
		"an invented token":               {acting, func(q *attackRequest) { q.token = strings.Repeat("A", 52) }, 403},
		"no cookie":                       {acting, func(q *attackRequest) { q.cookie = "" }, 403},
		"the cookie of another":           {acting, func(q *attackRequest) { q.cookie = strings.Repeat("B", 52) }, 403},
		"the form of another act":         {acting, func(q *attackRequest) { q.path = "/act/rollback" }, 403},
		"the form of a freeze, promoting": {acting, func(q *attackRequest) { q.path = "/act/promote?all=true" }, 403},
		"the form of a freeze, stopping":  {acting, func(q *attackRequest) { q.path = "/act/abort" }, 403},
		"an act that there is not":        {acting, func(q *attackRequest) { q.path = "/act/delete" }, 404},
		"GET":                             {acting, func(q *attackRequest) { q.method, q.path = "GET", path+"&reason=x&token="+q.token }, 200},
		"HEAD":                            {acting, func(q *attackRequest) { q.method, q.path = "HEAD", path+"&reason=x&token="+q.token }, 200},
		"PUT":                             {acting, func(q *attackRequest) { q.method = "PUT" }, 405},
		"a body that is no form":          {acting, func(q *attackRequest) { q.headers = map[string]string{"Content-Type": "text/plain"} }, 403},
		"a console that reads":            {reading, func(*attackRequest) {}, 403},
		"this machine, without the token of the console": {guarded, func(*attackRequest) {}, 403},
		"a reader with the token, elsewhere":             {guarded, func(q *attackRequest) { q.from, q.host, q.headers = "192.0.2.7:1", "mesh.example", bearer }, 403},
	} {
		t.Run(name, func(t *testing.T) {
			q := attackRequest{method: "POST", path: "/act/freeze", from: localFrom, host: localHost}
			if c.a == acting {
				q.token, q.cookie = acting.form(path, nil)
			}
			before := c.a.last(t.Context())
			c.change(&q)
			if w := c.a.send(q); w.Code != c.status {
				t.Errorf("status %d, want %d:\n%s", w.Code, c.status, w.Body)
			}
			if after := c.a.last(t.Context()); after != before {
				t.Errorf("the log went on from %d to %d", before, after)
			}
		})
	}
	t.Run("a form twice", func(t *testing.T) { acting.twice(t, path) })
	t.Run("the key of no operator", func(t *testing.T) { testStranger(t, m) })
	t.Run("without a key the page has no button", func(t *testing.T) {
		w := reading.send(attackRequest{method: "GET", path: "/act/rollback?version=" + m.first, from: localFrom, host: localHost})
		body := html.UnescapeString(w.Body.String())
		if strings.Contains(body, `method="post"`) || !strings.Contains(body, "meshlog rollback "+m.first) || !strings.Contains(body, "weight: 50 -> 90") || !strings.Contains(body, "only reads") {
			t.Errorf("status %d:\n%s", w.Code, body)
		}
	})
	t.Run("this machine, with the token", func(t *testing.T) {
		q := attackRequest{method: "POST", path: "/act/rollback", from: localFrom, host: localHost, headers: bearer}
		q.token, q.cookie = guarded.form(address("/act/rollback", "version", m.first, "object", "VirtualService/demo/shop"), bearer)
		if w := guarded.send(q); w.Code != http.StatusSeeOther {
			t.Errorf("status %d:\n%s", w.Code, w.Body)
		}
	})
}

// twice sends a form twice: it counts once.
func (a *attackRig) twice(t *testing.T, path string) {
	q := attackRequest{method: "POST", path: "/act/freeze", from: localFrom, host: localHost}
	q.token, q.cookie = a.form(path, nil)
	if w := a.send(q); w.Code != http.StatusSeeOther {
		t.Fatalf("once: status %d:\n%s", w.Code, w.Body)
	}
	before := a.last(t.Context())
	if w := a.send(q); w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "was used already") {
		t.Errorf("twice: status %d:\n%s", w.Code, w.Body)
	}
	if after := a.last(t.Context()); after != before {
		t.Errorf("the log went on from %d to %d", before, after)
	}
}

// testStranger acts with a key that the MeshPolicy does not name.
func testStranger(t *testing.T, m *mesh) {
	key, _ := operator(t)
	other := m.attack(key, "")
	q := attackRequest{method: "POST", path: "/act/rollback", from: localFrom, host: localHost}
	q.token, q.cookie = other.form(address("/act/rollback", "version", m.first), nil)
	before := other.last(t.Context())
	if w := other.send(q); w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "is the key of no operator in the MeshPolicy") {
		t.Errorf("status %d:\n%s", w.Code, w.Body)
	}
	if after := other.last(t.Context()); after != before {
		t.Errorf("the log went on from %d to %d", before, after)
	}
}
