package web_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"log/slog"

	"meshlog.dev/services/console/web"
)

var versionLink = regexp.MustCompile(`href="/version\?at=([0-9.]+)"`)

// Each page of a mesh with a history, now and in the past.
func TestPages(t *testing.T) {
	m := start(t)
	const app = "sidecar~10.0.0.9~app.demo~demo.svc.cluster.local"
	first, shifted := m.first, m.shifted
	for name, c := range map[string]struct {
		path   string
		status int
		want   []string
		absent []string
	}{
		"overview":  {"/", 200, []string{"Needs attention", "up leads", "the guard holds back", `sse-connect="/events"`}, []string{"You look at the past"}},
		"timeline":  {"/timeline", 200, []string{"Versions over time", `sse-connect="/events"`}, nil},
		"by name":   {"/timeline?name=new", 200, []string{"new.yaml:1"}, nil},
		"filtered":  {"/timeline?kind=VirtualService", 200, []string{"VirtualService demo/shop", "routes.yaml:1"}, []string{"new.yaml"}},
		"by actor":  {"/timeline?actor=nobody", 200, []string{"No version matches"}, nil},
		"version":   {address("/version", "at", shifted), 200, []string{"spec.http[0].route[0].weight: 90 -&gt; 50", "routes.yaml:1", "You look at the past"}, []string{"sse-connect"}},
		"xds diff":  {address("/version", "at", shifted, "proxy", app), 200, []string{"RouteConfiguration 80", "weight"}, nil},
		"objects":   {"/objects?kind=VirtualService", 200, []string{"1 object at version", ">shop</a>"}, []string{"lost-1"}},
		"sorted":    {"/objects?sort=-name", 200, []string{`aria-sort="descending"`}, nil},
		"object":    {address("/object", "key", "VirtualService/demo/shop"), 200, []string{"weight: 50", "weight: 90 -&gt; 50", "served"}, nil},
		"then":      {address("/object", "key", "VirtualService/demo/shop", "at", first), 200, []string{"weight: 90\n"}, nil},
		"refused":   {address("/object", "key", "VirtualService/demo/late"), 200, []string{"refused", "This version does not have it"}, nil},
		"missing":   {address("/object", "key", "VirtualService/demo/shopp"), 404, []string{"did you mean VirtualService/demo/shop?"}, nil},
		"no object": {"/object?key=x", 400, []string{"want KIND/NAMESPACE/NAME"}, nil},
		"fleet":     {"/fleet", 200, []string{"2 streams", "rejecting", "in sync", "NACK"}, nil},
		"rejecting": {"/fleet?state=rejecting", 200, []string{"1 stream."}, []string{app}},
		"groups":    {"/fleet?group=version", 200, []string{"Streams", "In sync"}, nil},
		"proxy":     {address("/proxy", "id", app, "type", "CDS"), 200, []string{"ACKED", "outbound|80|v1|shop.internal", "Why outbound|80|v1|shop.internal"}, nil},
		"past":      {address("/proxy", "id", app, "type", "CDS", "at", first), 200, []string{"What it would have at " + first, "outbound|80|v1|shop.internal"}, []string{">new<"}},
		"no proxy":  {"/proxy?id=nobody", 404, []string{"not connected to any frontend"}, nil},
		"why":       {address("/why", "proxy", app, "resource", "cluster/outbound|80|v1|shop.internal"), 200, []string{"DestinationRule demo/shop", "shop.yaml:1", "without it there is no such resource"}, nil},
		"used":      {address("/object", "key", "DestinationRule/demo/shop"), 200, []string{"Where it is used", "that is made from it, one proxy for each class", "outbound|80|v1|shop.internal", "/why?"}, nil},
		"not used":  {address("/object", "key", "MeshPolicy/default"), 200, []string{"No connected proxy has a resource that is made from it"}, nil},
		"routes":    {address("/routes", "proxy", app, "host", "shop.internal"), 200, []string{`<svg class="routes"`, "outbound|80|v1|shop.internal", "10.1.0.1:80", ">50<", "field=virtual_hosts", "/objects?q=shop", "cluster%2Foutbound%7C80%7Cv1%7Cshop.internal"}, []string{"no endpoints"}},
		"then sent": {address("/routes", "proxy", app, "host", "shop.internal", "at", first), 200, []string{">90<", ">10<"}, []string{">50<"}},
		"no routes": {address("/routes", "proxy", app, "host", "nobody"), 200, []string{"No route of"}, nil},
		"sources":   {"/sources", 200, []string{"file/default", "FOLLOWING"}, nil},
		"problems":  {"/problems", 200, []string{"Held back by the guard", "10 objects of file/default", "subsett"}, nil},
		"rollouts":  {"/rollouts", 200, []string{"All proxies have all changes", `sse-connect="/events"`}, nil},
		"no reach":  {"/fleet?q=!sidecar", 200, []string{"1 stream."}, []string{app}},
		"before":    {address("/problems", "at", first), 200, []string{"subsett"}, []string{"Held back by the guard"}},
		"no page":   {"/nothing", 404, []string{"there is no page /nothing"}, nil},
		"no time":   {"/?at=never", 400, []string{"want EPOCH.SEQ"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			status, body := m.get(c.path)
			if status != c.status {
				t.Errorf("%s: status %d, want %d", c.path, status, c.status)
			}
			for _, want := range c.want {
				if !strings.Contains(body, want) {
					t.Errorf("%s lacks %q:\n%s", c.path, want, body)
				}
			}
			for _, absent := range c.absent {
				if strings.Contains(body, absent) {
					t.Errorf("%s has %q", c.path, absent)
				}
			}
			if c.status == 200 && strings.Contains(c.path, "at=") && !strings.Contains(body, `href="/fleet?at=`) {
				t.Errorf("%s: the links of the page lose the version", c.path)
			}
		})
	}
	t.Run("no script of others", func(t *testing.T) { testInjection(t, m) })
}

// Text of proxies, sources and addresses is text, wherever it appears.
func testInjection(t *testing.T, m *mesh) {
	for _, path := range []string{
		"/", "/fleet", "/fleet?group=class", address("/proxy", "id", evil), address("/fleet", "q", evil), address("/objects", "q", evil, "kind", evil),
		address("/timeline", "actor", evil), address("/routes", "proxy", evil, "host", evil), address("/act/rollback", "version", evil, "object", evil), address("/act/pin", "version", "latest", "proxies", evil), address("/act/promote", "id", evil), address("/rollouts", "at", evil), address("/acted", "record", evil), address("/problems", "q", evil), address("/why", "proxy", evil, "resource", evil), address("/object", "key", evil),
		address("/", "at", evil), address("/login", "to", evil), "/" + address("<script>", "x", evil), address("/version", "proxy", evil),
	} {
		_, body := m.get(path)
		for _, bad := range []string{"<script>document", "<img src=x", "<b>it is bad", " onerror=alert(1)>"} {
			if strings.Contains(body, bad) {
				t.Errorf("%s has %q", path, bad)
			}
		}
		if strings.Contains(body, "ZgotmplZ") {
			t.Errorf("%s has a value that the template refused", path)
		}
	}
	if _, body := m.get(address("/proxy", "id", evil)); !strings.Contains(body, "&lt;b&gt;it is bad&lt;/b&gt;") {
		t.Errorf("the page of the proxy does not say why it rejects:\n%s", body)
	}
}

// Which requests may read: those of this machine under its own name, and those with the token.
func TestGuard(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("open sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	open := func(token string) http.Handler {
		s, err := web.New(token, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return s.Handler()
	}
	closed, guarded := open(""), open(file)
	request := func(method, target, from, host string, headers ...string) *http.Request {
		r := httptest.NewRequest(method, target, nil)
		r.RemoteAddr, r.Host = from, host
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		return r
	}
	const local, away = "127.0.0.1:5000", "192.0.2.7:5000"
	for name, c := range map[string]struct {
		h    http.Handler
		r    *http.Request
		want int
	}{
		"this machine":               {closed, request("GET", "/", local, "127.0.0.1:15016"), 503}, // no mesh is open
		"localhost":                  {closed, request("GET", "/", local, "localhost:15016"), 503},
		"a rebound name":             {closed, request("GET", "/", local, "attacker.example:15016"), 403},
		"a forwarded request":        {closed, request("GET", "/", local, "127.0.0.1:15016", "X-Forwarded-For", "192.0.2.1"), 403},
		"another machine":            {closed, request("GET", "/", away, "127.0.0.1:15016"), 403},
		"a link on another site":     {closed, request("GET", "/", local, "127.0.0.1:15016", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"), 503},
		"a script of another site":   {closed, request("GET", "/events", local, "127.0.0.1:15016", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "cors"), 403},
		"a form of another site":     {guarded, request("POST", "/login", local, "127.0.0.1:15016", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"), 403},
		"without the token":          {guarded, request("GET", "/", away, "mesh.example"), 303},
		"with it":                    {guarded, request("GET", "/", away, "mesh.example", "Authorization", "Bearer open sesame"), 503},
		"with a wrong one":           {guarded, request("GET", "/events", away, "mesh.example", "Authorization", "Bearer open"), 401},
		"an invented session":        {guarded, request("GET", "/events", away, "mesh.example", "Cookie", "meshlog-console="), 401},
		"an endless address":         {guarded, request("GET", "/?q="+strings.Repeat("a", 10_000), local, "127.0.0.1:15016"), 414},
		"an asset":                   {guarded, request("GET", "/static/console.css", away, "mesh.example"), 200},
		"a path out of the assets":   {guarded, request("GET", "/static/..%2f..%2fserver.go", away, "mesh.example"), 400},
		"a folder":                   {guarded, request("GET", "/static/", away, "mesh.example"), 404},
		"a method that does nothing": {guarded, request("DELETE", "/", local, "127.0.0.1:15016"), 405},
	} {
		t.Run(name, func(t *testing.T) {
			w := httptest.NewRecorder()
			c.h.ServeHTTP(w, c.r)
			if w.Code != c.want {
				t.Errorf("status %d, want %d: %s", w.Code, c.want, w.Body)
			}
			if p := w.Header().Get("Content-Security-Policy"); !strings.Contains(p, "default-src 'none'") || strings.Contains(p, "unsafe") {
				t.Errorf("Content-Security-Policy %q", p)
			}
		})
	}
}

// The token begins a session, and leads to a page of the console only.
func TestLogin(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("open sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := web.New(file, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	h := s.Handler()
	send := func(method, target, form string, cookies ...*http.Cookie) (*httptest.ResponseRecorder, []*http.Cookie) {
		r := httptest.NewRequest(method, target, strings.NewReader(form))
		r.RemoteAddr, r.Host = "192.0.2.7:1", "mesh.example"
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		for _, c := range cookies {
			r.AddCookie(c)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		result := w.Result()
		defer result.Body.Close()
		return w, result.Cookies()
	}
	if r, c := send("POST", "/login", "token=open&to=/fleet"); r.Code != 401 || len(c) != 0 {
		t.Errorf("a wrong token: status %d, cookies %v", r.Code, c)
	}
	for to, want := range map[string]string{
		"/fleet?at=1.2": "/fleet?at=1.2", "//evil.example/": "/", "https://evil.example/": "/", "/\\evil.example": "/", "javascript:alert(1)": "/", "": "/",
	} {
		form := "token=open+sesame&to=" + strings.NewReplacer("?", "%3F", "=", "%3D", "\\", "%5C").Replace(to)
		r, c := send("POST", "/login", form)
		if got := r.Header().Get("Location"); r.Code != 303 || got != want {
			t.Errorf("to %q: status %d, location %q, want %q", to, r.Code, got, want)
		}
		if len(c) != 1 || !c[0].HttpOnly || c[0].SameSite != http.SameSiteLaxMode {
			t.Fatalf("the cookie is %v", c)
		}
		if r, _ := send("GET", "/", "", c[0]); r.Code != 503 { // no mesh is open
			t.Errorf("with the session: status %d", r.Code)
		}
	}
}
