package web

import (
	"fmt"
	"log/slog"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"meshlog.dev/services/console/watch"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// services returns a console of a mesh with so many services of Kubernetes, and a sidecar.
func services(tb testing.TB, n int) (*Server, *watch.Mesh, *watch.Now, *proxy.Proxy) {
	tb.Helper()
	var d store.Delta
	for i := range n {
		name := fmt.Sprintf("s-%05d", i)
		for _, c := range []meshtest.Change{meshtest.Service("demo", name, "80 http"), meshtest.Slice("demo", name, "80 http", fmt.Sprintf("10.%d.%d.1", i/250, i%250))} {
			row := c.Row()
			d.Put = append(d.Put, store.Row{Key: row.Row, Value: row.Value})
		}
	}
	head := store.Stored{Manifest: &store.Manifest{Version: at(9)}, Snapshot: (*store.Snapshot)(nil).With(d)}
	s, err := New("", slog.New(slog.DiscardHandler))
	if err != nil {
		tb.Fatal(err)
	}
	of, err := proxy.New(&corev3.Node{Id: "sidecar~10.0.0.9~app.demo~demo.svc.cluster.local", Cluster: "demo"})
	if err != nil {
		tb.Fatal(err)
	}
	return s, &watch.Mesh{Past: &past.Past{Name: "test", Versions: one{head}}}, &watch.Now{At: time.Now(), Head: head}, of
}

// BenchmarkRoutes measures the page of routes in a mesh with 10,000 services. The first one makes
// all resources of the proxy, which is not measured.
func BenchmarkRoutes(b *testing.B) {
	s, m, now, of := services(b, 10_000)
	show := func(b *testing.B, host string) {
		p := &page{Path: "/routes", Query: url.Values{"host": {host}}, Now: now.At, Mesh: now, mesh: m}
		v := &routesData{Proxy: of.ID}
		err := p.moveTo(b.Context(), "")
		if err == nil {
			err = v.take(b.Context(), p, &s.scene, of)
		}
		if err != nil || len(v.Paths.Rows) == 0 {
			b.Fatalf("%v, %d routes", err, v.Paths.All)
		}
		p.Data = v
		w := httptest.NewRecorder()
		if s.render(w, "routes.html", p); w.Code != 200 {
			b.Fatalf("status %d", w.Code)
		}
	}
	show(b, "")
	for name, host := range map[string]string{"all": "", "one host": "s-00777"} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				show(b, host)
			}
		})
	}
}
