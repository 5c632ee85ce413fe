package web_test

import (
	"bytes"
	"cmp"
	"html"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"meshlog.dev/events"
)

// ask sends a draft as the form of the page does.
func (m *mesh) ask(fields map[string]string, file string) (int, string) {
	m.Helper()
	var b bytes.Buffer
	form := multipart.NewWriter(&b)
	for name, value := range fields {
		if err := form.WriteField(name, value); err != nil {
			m.Fatal(err)
		}
	}
	part, err := form.CreateFormFile("file", "upload.yaml") // as browsers do without a file, too
	if err == nil {
		_, err = io.WriteString(part, file)
	}
	if err == nil {
		err = form.Close()
	}
	if err != nil {
		m.Fatal(err)
	}
	r, err := http.Post(m.url+"/what-if", form.FormDataContentType(), &b)
	if err != nil {
		m.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		m.Fatal(err)
	}
	return r.StatusCode, html.UnescapeString(string(text))
}

// The console says what a draft would do, as `meshlog what-if` does, and writes nothing.
func TestWhatIfPage(t *testing.T) {
	m := start(t)
	const app = "sidecar~10.0.0.9~app.demo~demo.svc.cluster.local"
	rig := m.attack("", "")
	before := m.objects(rig)
	laughs := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for i := 'b'; i < 'k'; i++ {
		laughs += string(i) + ": &" + string(i) + " [" + strings.TrimSuffix(strings.Repeat("*"+string(i-1)+",", 9), ",") + "]\n"
	}
	cases := map[string]struct {
		fields map[string]string
		file   string
		status int
		want   []string
		absent []string
	}{
		"a change":      {map[string]string{"objects": route(10, 90)}, "", 200, []string{"What it would do", "1 object would differ", "VirtualService demo/shop (file/default)", "weight: 50 -> 10", "RouteConfiguration 80", "connected)", "Nothing was written."}, []string{"would hold it back"}},
		"a file":        {nil, route(10, 90), 200, []string{"upload.yaml:", "weight: 50 -> 10"}, nil},
		"nothing":       {map[string]string{"objects": route(50, 50)}, "", 200, []string{"Nothing would change."}, nil},
		"one proxy":     {map[string]string{"objects": route(10, 90), "proxy": app}, "", 200, []string{app + ":", "RouteConfiguration 80"}, []string{"connected)"}},
		"no proxy":      {map[string]string{"objects": route(10, 90), "proxy": "nobody"}, "", 404, []string{"not connected to any frontend"}, nil},
		"an object":     {map[string]string{"delete": "ServiceEntry/demo/shop"}, "", 200, []string{"removed", "loses its last endpoint"}, nil},
		"no object":     {map[string]string{"delete": "ServiceEntry/demo/shopp"}, "", 404, []string{"did you mean ServiceEntry/demo/shop"}, nil},
		"invalid":       {map[string]string{"objects": late}, "", 200, []string{"Not judged", "unknown field", "draft:6", "subsett"}, []string{"What it would do"}},
		"a destination": {map[string]string{"objects": strings.Replace(route(50, 50), "subset: v2", "subset: v3", 1)}, "", 200, []string{`subset "v3"`}, nil},
		"no YAML":       {map[string]string{"objects": "a: b: c\n"}, "", 200, []string{"Not judged"}, nil},
		"a bomb":        {map[string]string{"objects": laughs}, "", 200, []string{"Not judged"}, nil},
		"a key":         {map[string]string{"objects": "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: demo}\nstringData: {tls.key: x}\n"}, "", 200, []string{"Not judged"}, nil},
		"empty":         {map[string]string{"objects": " "}, "", 400, []string{"Give objects"}, nil},
		"twice":         {map[string]string{"objects": route(1, 99)}, route(1, 99), 400, []string{"not both"}, nil},
		"too large":     {map[string]string{"objects": strings.Repeat("# x\n", 300_000)}, "", 413, []string{"takes 1024 KiB"}, nil},
		"script":        {map[string]string{"objects": strings.Replace(route(10, 90), "shop", "'"+evil+"'", 1), "delete": evil}, "", 0, nil, []string{"owned'</script>\n<"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			m := *m
			m.T = t
			status, body := m.ask(c.fields, c.file)
			if c.status != 0 && status != c.status {
				t.Errorf("status %d, want %d", status, c.status)
			}
			for _, w := range c.want {
				if !strings.Contains(body, w) {
					t.Errorf("lacks %q:\n%s", w, body)
				}
			}
			for _, a := range c.absent {
				if strings.Contains(body, a) {
					t.Errorf("has %q:\n%s", a, body)
				}
			}
		})
	}
	t.Run("the guard", func(t *testing.T) {
		status, body := m.ask(map[string]string{"delete": "ServiceEntry/demo/shop DestinationRule/demo/shop VirtualService/demo/shop Resource/default/new MeshPolicy/default"}, "")
		if status != 200 || !strings.Contains(body, "The guard would hold it back") {
			t.Errorf("status %d:\n%s", status, body)
		}
	})
	t.Run("attacks", func(t *testing.T) { m.whatIfAttacks(t, rig) })
	if status, body := m.get("/what-if?at=latest~1"); status != 400 {
		t.Errorf("of the past: status %d:\n%s", status, body)
	}
	if after := m.objects(rig); after != before {
		t.Errorf("the log has another last object: %d, %d before", after, before)
	}
	t.Run("without the bus", func(t *testing.T) {
		if err := m.Stop(); err != nil {
			t.Fatal(err)
		}
		m.until("/what-if", "What you see may be old")
		if status, body := m.ask(map[string]string{"objects": route(10, 90)}, ""); status != 200 || !strings.Contains(body, "weight: 50 -> 10") {
			t.Errorf("status %d:\n%s", status, body)
		}
	})
}

// objects returns the last record of the source of drafts and of the files.
func (m *mesh) objects(a *attackRig) (n uint64) {
	m.Helper()
	for seq := a.last(m.Context()); seq > 0; seq-- {
		r, err := a.log.Get(m.Context(), seq)
		if err != nil {
			m.Fatal(err)
		}
		if o, ok := r.Event.Body.(*events.Object); ok && o.Key.Name != "" {
			return seq
		}
	}
	return 0
}

// whatIfAttacks are drafts that are not of a page of the console.
func (m *mesh) whatIfAttacks(t *testing.T, a *attackRig) {
	for name, q := range map[string]attackRequest{
		"another site":   {headers: map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}},
		"an old browser": {headers: map[string]string{"Origin": "http://evil.example"}},
		"a rebound name": {host: "evil.example:15016"},
		"elsewhere":      {from: "192.0.2.7:1", host: "mesh.example"},
	} {
		q.method, q.path = "POST", "/what-if?"+url.Values{"delete": {"ServiceEntry/demo/shop"}}.Encode()
		q.from, q.host = cmp.Or(q.from, localFrom), cmp.Or(q.host, localHost)
		if w := a.send(q); w.Code != http.StatusForbidden || strings.Contains(w.Body.String(), "endpoint") {
			t.Errorf("%s: status %d:\n%s", name, w.Code, w.Body)
		}
	}
	w := a.send(attackRequest{method: "POST", path: "/what-if?delete=ServiceEntry/demo/shop", from: localFrom, host: localHost})
	if p := w.Header().Get("Content-Security-Policy"); w.Code != http.StatusBadRequest || !strings.Contains(p, "default-src 'none'") || strings.Contains(p, "unsafe") {
		t.Errorf("a draft in the address: status %d, policy %q", w.Code, p)
	}
}
