package web

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/console/watch"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/operate/inspect"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

func at(seq uint64) *snapshotv1.Version { return &snapshotv1.Version{Epoch: 1, Seq: seq} }

// one is a chain of one version.
type one struct{ store.Stored }

func (o one) Fetch(context.Context, ident.Position) (store.Stored, error) { return o.Stored, nil }

func (o one) History(context.Context) iter.Seq2[*store.Manifest, error] {
	return func(yield func(*store.Manifest, error) bool) { yield(o.Manifest, nil) }
}

func (o one) Updates(context.Context, ident.Position) iter.Seq2[store.Update, error] {
	return func(func(store.Update, error) bool) {}
}

// large returns a console of a mesh with 10,000 objects and 5,000 proxies, of which each tenth
// is behind.
func large(tb testing.TB) (*Server, *watch.Mesh, *watch.Now) {
	tb.Helper()
	var d store.Delta
	for i := range 10_000 {
		k := ident.Key{Source: "file", Instance: "default", Kind: "VirtualService", Namespace: "demo", Name: fmt.Sprintf("vs-%05d", i)}
		d.Put = append(d.Put, store.Row{Key: k.Row(), Value: world.MarshalValue(ident.Value{Type: "meshlog.config.v1.Unknown"})})
	}
	head := store.Stored{Manifest: &store.Manifest{Version: at(9)}, Snapshot: (*store.Snapshot)(nil).With(d)}
	f := &reportv1.FrontendReport{Frontend: "f", Serving: at(9)}
	for i := range 5000 {
		p := &reportv1.ProxyReport{Id: fmt.Sprintf("sidecar~10.0.%d.%d~app-%d.demo~demo.svc.cluster.local", i/250, i%250, i), Type: "sidecar"}
		for _, t := range []ident.ResourceType{ident.CDS, ident.EDS, ident.LDS, ident.RDS} {
			has := at(9)
			if i%10 == 0 {
				has = at(8)
			}
			p.Types = append(p.Types, &reportv1.TypeReport{TypeUrl: t.URL(), Sent: has, Acked: has, SentVersion: "a", AckedVersion: "a"})
		}
		f.Proxies = append(f.Proxies, p)
	}
	now := &watch.Now{At: time.Now(), Head: head, Reports: &bus.Reports{Builders: []*reportv1.BuilderReport{{Leader: true, Head: at(9)}}, Frontends: []*reportv1.FrontendReport{f}}}
	chain := one{head}
	now.Proxies, _ = inspect.Proxies(now.Reports, chain.History(tb.Context()), now.At)
	s, err := New("", slog.New(slog.DiscardHandler))
	if err != nil {
		tb.Fatal(err)
	}
	return s, &watch.Mesh{Watch: watch.New(nil, nil, slog.New(slog.DiscardHandler)), Past: &past.Past{Name: "test", Versions: chain}}, now
}

// pagesOfLarge are the addresses that are measured.
var pagesOfLarge = map[string]string{
	"fleet": "/fleet", "fleet sorted": "/fleet?sort=-version&page=7", "fleet filtered": "/fleet?state=behind", "fleet grouped": "/fleet?group=version",
	"objects": "/objects", "objects filtered": "/objects?q=777&sort=-name",
}

// serve serves an address of a large mesh.
func serve(tb testing.TB, s *Server, m *watch.Mesh, now *watch.Now, target string) {
	tb.Helper()
	u, err := url.Parse(target)
	if err != nil {
		tb.Fatal(err)
	}
	p := &page{Path: u.Path, Query: u.Query(), Now: now.At, Mesh: now, mesh: m}
	v := views[u.Path]
	if err = p.moveTo(tb.Context(), ""); err == nil {
		p.Data, err = v.make(tb.Context(), p)
	}
	if err != nil {
		tb.Fatal(err)
	}
	w := httptest.NewRecorder()
	s.render(w, v.file, p)
	if w.Code != 200 || w.Body.Len() > 200_000 {
		tb.Fatalf("status %d, %d bytes", w.Code, w.Body.Len())
	}
}

// BenchmarkPages measures the server's time for pages of a large mesh, which must stay below
// 100 ms.
func BenchmarkPages(b *testing.B) {
	s, m, now := large(b)
	for name, target := range pagesOfLarge {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				serve(b, s, m, now, target)
			}
		})
	}
}

// A page has a bounded number of rows, whatever the size of the mesh.
func TestLargePages(t *testing.T) {
	s, m, now := large(t)
	for _, target := range pagesOfLarge {
		serve(t, s, m, now, target)
	}
}

func TestOwnPath(t *testing.T) {
	for to, want := range map[string]string{"/a?b=c": "/a?b=c", "": "/", "a": "/", "//x": "/", "/\\x": "/", "http://x/": "/", "/%2f/x": "/"} {
		if got := ownPath(to); got != want {
			t.Errorf("%q: %q, want %q", to, got, want)
		}
	}
}

func TestPaged(t *testing.T) {
	rows := make([]int, 250)
	for number, want := range map[string][3]int{"": {1, 100, 1}, "2": {101, 200, 2}, "3": {201, 250, 3}, "9": {201, 250, 3}, "-1": {1, 100, 1}, "x": {1, 100, 1}} {
		if p := paged(rows, number); p.First != want[0] || p.Last != want[1] || p.Page != want[2] || p.Pages != 3 {
			t.Errorf("page %q: %d to %d, page %d of %d", number, p.First, p.Last, p.Page, p.Pages)
		}
	}
	if p := paged([]int{}, ""); p.First != 0 || p.Last != 0 || p.Pages != 1 {
		t.Errorf("no rows: %+v", p)
	}
}
