package content_test

import (
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/content"
	"meshlog.dev/services/mesh/index"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds"
)

// cached is a cache and the world that it serves.
type cached struct {
	*content.Cache
	t     testing.TB
	world *world.World
	pc    *index.PushContext
	seq   uint64
}

func newWorld(t testing.TB, changes ...Change) *cached {
	w := &cached{Cache: content.New(0), t: t, world: world.NewWorld()}
	w.pc = index.NewPushContext(w.world)
	w.change(changes...)
	return w
}

func (w *cached) change(changes ...Change) {
	w.t.Helper()
	next, keys, err := w.world.Apply(Rows(changes...))
	if err != nil {
		w.t.Fatal(err)
	}
	var inputs []index.Input
	w.world = next
	w.pc, inputs = w.pc.Next(next, keys)
	w.seq++
	w.Update(ident.Position{Epoch: 1, Seq: w.seq}, time.Time{}, w.pc, inputs)
}

func (w *cached) join(cluster string) *content.Client {
	return w.Join(&proxy.Proxy{ID: cluster, Cluster: cluster}, func() {})
}

func names(s *xds.Set) []string {
	var out []string
	for _, r := range s.Resources {
		out = append(out, r.Name)
	}
	return out
}

func TestClassesShareContent(t *testing.T) {
	w := newWorld(t, Put("a", Cluster("a", 1)), PutFor("b", Group("m"), Cluster("b", 1)), Put("e", Endpoints("a", 1)))
	m, m2, n := w.join("m").View(), w.join("m").View(), w.join("n").View()
	if m.Sets != m2.Sets {
		t.Error("proxies of one class have different sets")
	}
	if m.Sets[ident.CDS] == n.Sets[ident.CDS] {
		t.Error("proxies of different classes share a set")
	}
	if m.Sets[ident.EDS] != n.Sets[ident.EDS] {
		t.Error("classes that differ only in clusters do not share the set of endpoints")
	}
	if m.Sets[ident.CDS].Find("a") != n.Sets[ident.CDS].Find("a") {
		t.Error("the same content is encoded twice")
	}
	if diff := cmp.Diff([]string{"a", "b"}, names(m.Sets[ident.CDS])); diff != "" {
		t.Errorf("m's clusters (-want +got):\n%s", diff)
	}
}

func TestUpdateTouchesWhatItChanges(t *testing.T) {
	w := newWorld(t, Put("a", Cluster("a", 1)), PutFor("b", Group("m"), Cluster("b", 1)), Put("e", Endpoints("a", 1)))
	m, n := w.join("m"), w.join("n")
	before, other := m.View(), n.View()
	w.change(PutFor("b", Group("m"), Cluster("b", 2)))
	after := m.View()
	if after.Sets[ident.CDS] == before.Sets[ident.CDS] {
		t.Error("the class that uses the changed cluster has its old set")
	}
	if after.Sets[ident.EDS] != before.Sets[ident.EDS] || n.View().Sets != other.Sets {
		t.Error("a set that does not use the changed cluster was made again")
	}
	if after.Sets[ident.CDS].Find("a") != before.Sets[ident.CDS].Find("a") {
		t.Error("an unchanged cluster was encoded again")
	}
	if got := n.View().Version; got.Seq != 2 {
		t.Errorf("version %s", got)
	}
	// Content that changes back has its earlier version again.
	w.change(PutFor("b", Group("m"), Cluster("b", 1)))
	if got, want := m.View().Sets[ident.CDS].Sum, before.Sets[ident.CDS].Sum; got != want {
		t.Errorf("sum %s, want %s as before for the same content", got, want)
	}
}

// If new selectors change a proxy's class, the proxy is in the new class at once.
// A class without clients is dropped with the next version.
func TestClassesComeAndGo(t *testing.T) {
	w := newWorld(t, Put("a", Cluster("a", 1)))
	m := w.join("m")
	m.View()
	w.change(PutFor("b", Group("m"), Cluster("b", 1)))
	if diff := cmp.Diff([]string{"a", "b"}, names(m.View().Sets[ident.CDS])); diff != "" {
		t.Errorf("clusters (-want +got):\n%s", diff)
	}
	w.change()
	if got := w.Sets(); got != int(ident.ResourceTypes) {
		t.Errorf("%d sets for one class of %d types", got, ident.ResourceTypes)
	}
	m.Leave()
	w.change(Put("c", Cluster("c", 1)))
	if got := w.Sets(); got != 0 {
		t.Errorf("%d sets without a client", got)
	}
}

// The cache makes the sets that most proxies need before the first proxy connects,
// and drops them with the next version if no proxy has connected.
func TestForesees(t *testing.T) {
	w := newWorld(t, Put("a", Cluster("a", 1)))
	if got := w.Sets(); got == 0 {
		t.Error("no set is made before the first client")
	}
	w.change(Put("b", Cluster("b", 1)))
	if got := w.Sets(); got != 0 {
		t.Errorf("%d sets are kept without a client", got)
	}
}

func TestPast(t *testing.T) {
	w := newWorld(t, Put("a", Cluster("a", 1)))
	m := w.join("m")
	want := []xds.Sum{m.View().Sets[ident.CDS].Sum}
	w.change(Put("b", Cluster("b", 1)))
	want = append([]xds.Sum{m.View().Sets[ident.CDS].Sum}, want...)
	w.change(Remove("a"))
	var got []xds.Sum
	for v := range m.Past() {
		got = append(got, v.Sets[ident.CDS].Sum)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("past, newest first (-want +got):\n%s", diff)
	}
}

// Versions of sets depend on their content alone.
func TestVersionsAreEqualEverywhere(t *testing.T) {
	one := newWorld(t, Put("a", Cluster("a", 1)), Put("b", Cluster("b", 1)), Put("r", Routes("r", To("a", 1))))
	two := newWorld(t, Put("x", Cluster("x", 1)))
	two.change(Put("b", Cluster("b", 9)), Put("r", Routes("r", To("a", 1))))
	two.change(Remove("x"), Put("b", Cluster("b", 1)), Put("a", Cluster("a", 1)))
	v, w := one.join("m").View(), two.join("m").View()
	for t2 := range ident.ResourceTypes {
		if v.Sets[t2].Sum != w.Sets[t2].Sum {
			t.Errorf("%s: %s and %s", t2, v.Sets[t2].Sum, w.Sets[t2].Sum)
		}
	}
}

// A set's encoding is one field of a DiscoveryResponse, with the bytes on the log.
func TestEncoded(t *testing.T) {
	w := newWorld(t, Put("a", Cluster("a", 1)), Put("b", Cluster("b", 2)))
	var wire []byte
	for _, r := range w.join("m").View().Sets[ident.CDS].Resources {
		wire = append(append(wire, r.Head...), r.Value()...)
	}
	empty := xds.Empty(ident.RDS, "nowhere")
	wire = append(append(wire, empty.Head...), empty.Value()...)
	var got discoveryv3.DiscoveryResponse
	if err := proto.Unmarshal(wire, &got); err != nil {
		t.Fatal(err)
	}
	for i, want := range []proto.Message{Cluster("a", 1), Cluster("b", 2), EmptyRoutes("nowhere")} {
		m, err := got.GetResources()[i].UnmarshalNew()
		if err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(want, m) {
			t.Errorf("got %v, want %v", m, want)
		}
	}
}
