package command_test

import (
	"fmt"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/store"
)

// A Scene that goes from content to content, forward and back, serves each proxy what ServedOf
// makes anew.
func TestScene(t *testing.T) {
	content := func(changes ...meshtest.Change) *store.Snapshot {
		var d store.Delta
		for _, c := range changes {
			row := c.Row()
			d.Put = append(d.Put, store.Row{Key: row.Row, Value: row.Value})
		}
		return (*store.Snapshot)(nil).With(d)
	}
	a, b := meshtest.Service("demo", "a", "80 http"), meshtest.Service("demo", "b", "80 http")
	contents := []*store.Snapshot{
		content(a, meshtest.Slice("demo", "a", "80 http", "10.0.0.1")),
		content(a, meshtest.Slice("demo", "a", "80 http", "10.0.0.2"), b),
		content(b, meshtest.Slice("demo", "b", "80 http", "10.0.0.3")),
		content(),
	}
	var proxies []*proxy.Proxy
	for i := range 12 { // more than a Scene keeps
		p, err := proxy.New(&corev3.Node{Id: fmt.Sprintf("sidecar~10.9.0.%[1]d~app-%[1]d.ns-%[1]d~ns-%[1]d.svc.cluster.local", i)})
		if err != nil {
			t.Fatal(err)
		}
		proxies = append(proxies, p)
	}
	var s command.Scene
	for step, n := range []int{0, 1, 2, 1, 0, 3, 2, 2, 0} {
		for _, p := range proxies {
			want, err := command.ServedOf(contents[n], p)
			if err != nil {
				t.Fatal(err)
			}
			got, err := s.Served(contents[n], p)
			if err != nil {
				t.Fatal(err)
			}
			for rt := range ident.ResourceTypes {
				xds.Compare(want.Sets[rt], got.Sets[rt], func(was, is *xds.Resource) {
					t.Errorf("step %d, %s, %s: %v, want %v", step, p.ID, rt, is, was)
				})
			}
		}
	}
}
