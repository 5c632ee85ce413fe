package xds

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds/piece"
)

// The parts of these tests: each raw cluster of a class makes a virtual host in the
// RouteConfiguration "80", and a RouteConfiguration named after the cluster's hash.

type (
	testHead struct{ name string }
	testHost struct{ selector, cluster string }
)

func testParts(r *index.Reader, class index.ProxyClass, t ident.ResourceType) []piece.Part {
	raw, own := rawParts(r, t, class.Raw(t))
	parts := append(raw, own...)
	if t != ident.RDS {
		return parts
	}
	for i, s := range []string{"*", `cluster="m"`, `cluster="n"`} {
		if class.RDS.Namespace == "alone" && i > 0 {
			break
		}
		for _, raw := range r.Raw(ident.CDS, s) {
			parts = append(parts, testHost{s, raw.Name})
		}
	}
	if class.RDS.Namespace == "reverse" {
		slices.Reverse(parts)
	}
	return append(parts, testHead{"80"}, testHead{"80"})
}

func (p testHead) Make(*index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	return []piece.Piece{{Name: p.name, Partial: true, Message: &routev3.RouteConfiguration{Name: p.name}}}, nil
}

func (p testHost) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	raw := r.RawOne(ident.CDS, p.selector, p.cluster)
	if raw == nil {
		return nil, nil
	}
	hash := sha256.Sum256(raw.Value)
	text := fmt.Sprintf("%x", hash[:1])
	rc := &routev3.RouteConfiguration{VirtualHosts: []*routev3.VirtualHost{{Name: p.cluster + p.selector, Domains: []string{text}}}}
	pieces := []piece.Piece{{Name: "80", Partial: true, Message: rc}, {Name: text, Message: &routev3.RouteConfiguration{Name: text}}}
	switch hash[0] % 5 {
	case 0:
		return nil, nil
	case 1:
		rc.VirtualHosts[0].Name = "" // Envoy would reject it
	case 2:
		return pieces, []problem.Diagnostic{{Severity: problem.Warning, Code: "test", Reason: text}}
	}
	return pieces, nil
}

// testWorld is a world that changes, and a Catalog of it.
type testWorld struct {
	t       testing.TB
	world   *world.World
	pc      *index.PushContext
	catalog *Catalog
}

func newTestWorld(t testing.TB, parts partsFunc, changes ...meshtest.Change) *testWorld {
	w := &testWorld{t: t, world: world.NewWorld()}
	w.pc = index.NewPushContext(w.world)
	w.catalog = newCatalog(w.pc, parts)
	w.change(changes...)
	return w
}

func (w *testWorld) change(changes ...meshtest.Change) []Change {
	w.t.Helper()
	next, keys, err := w.world.Apply(meshtest.Rows(changes...))
	if err != nil {
		w.t.Fatal(err)
	}
	var inputs []index.Input
	w.world = next
	w.pc, inputs = w.pc.Next(next, keys)
	return w.catalog.Update(w.pc, inputs)
}

// class returns the class of the proxies with this cluster in their node.
func (w *testWorld) class(cluster string) index.ProxyClass {
	return index.Classify(w.pc, &proxy.Proxy{Cluster: cluster})
}

func randomChange(r *rand.Rand) meshtest.Change {
	object := fmt.Sprint("o", r.IntN(12))
	if r.IntN(4) == 0 {
		return meshtest.Remove(object)
	}
	name := fmt.Sprint("c", r.IntN(8))
	group := meshtest.Group([]string{"m", "n"}[r.IntN(2)])
	if r.IntN(2) == 0 {
		group = nil
	}
	switch r.IntN(6) {
	case 0:
		return meshtest.PutFor(object, group, meshtest.Endpoints(name, uint32(r.IntN(3))))
	case 1:
		return meshtest.PutFor(object, group, meshtest.Routes([]string{"80", "81"}[r.IntN(2)], meshtest.To(name, 1)))
	}
	return meshtest.PutFor(object, group, meshtest.Cluster(name, r.IntN(20)))
}

// After random changes in random steps, with classes that come and go, the kept
// Sets equal Sets generated from nothing, and the reported changes are exactly the
// differences.
func TestCatalogIsGenerate(t *testing.T) {
	everyRaw := index.SelectorSet("*\ncluster=\"m\"\ncluster=\"n\"")
	classes := []index.ProxyClass{
		{},
		{CDS: index.CDSClass{Raw: "*"}, EDS: index.EDSClass{Raw: "*"}, RDS: index.RDSClass{Raw: "*"}},
		{CDS: index.CDSClass{Raw: everyRaw}, EDS: index.EDSClass{Raw: everyRaw}, RDS: index.RDSClass{Raw: everyRaw}},
		{RDS: index.RDSClass{Raw: "*\ncluster=\"m\"", Namespace: "alone"}},
		{RDS: index.RDSClass{Namespace: "alone"}},
		{RDS: index.RDSClass{Namespace: "other"}},
		{RDS: index.RDSClass{Raw: everyRaw, Namespace: "reverse"}},
	}
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 7))
		w := newTestWorld(t, testParts)
		kept := map[classKey]*Set{}
		for step := range 40 {
			for range r.IntN(3) {
				k := classKey{ident.ResourceType(r.IntN(int(ident.ResourceTypes))), index.ProxyClass{}}
				k.of = classes[r.IntN(len(classes))].Only(k.t)
				if _, ok := kept[k]; ok && r.IntN(2) == 0 {
					delete(kept, k)
					w.catalog.Drop(k.of, k.t)
				} else {
					kept[k] = w.catalog.Set(k.of, k.t)
				}
			}
			var changes []meshtest.Change
			for range r.IntN(6) {
				changes = append(changes, randomChange(r))
			}
			fail := func(format string, args ...any) {
				t.Helper()
				t.Fatalf("seed %d, step %d: %s", seed, step, fmt.Sprintf(format, args...))
			}
			for _, ch := range w.change(changes...) {
				k := classKey{ch.Type, *ch.Class}
				if diff := cmp.Diff(Changed(kept[k], ch.Set), ch.Names); diff != "" || len(ch.Names) == 0 {
					fail("%v: changed (-want +got):\n%s", k, diff)
				}
				kept[k] = ch.Set
			}
			if err := w.catalog.Verify(); err != nil {
				fail("%v", err)
			}
			fresh := newCatalog(w.pc, testParts)
			for k, set := range kept {
				if got := w.catalog.Set(k.of, k.t); got != set {
					fail("%v: changed, and not said so", k)
				}
				if other := fresh.Set(k.of, k.t); other.Sum != set.Sum || len(Changed(other, set)) > 0 {
					fail("%v: another Catalog has something else", k)
				}
			}
			if diff := cmp.Diff(fresh.Diagnostics(), w.catalog.Diagnostics()); diff != "" {
				fail("diagnostics (-from nothing +kept):\n%s", diff)
			}
		}
		for k := range kept {
			w.catalog.Drop(k.of, k.t)
		}
		if c := w.catalog; len(c.classes)+len(c.lists)+len(c.parts)+len(c.names)+len(c.readers)+len(c.problems.count) != 0 {
			t.Fatalf("seed %d: a Catalog without classes keeps %d lists, %d parts, %d names, %d inputs, %d problems",
				seed, len(c.lists), len(c.parts), len(c.names), len(c.readers), len(c.problems.count))
		}
	}
}

// testPart makes one RouteConfiguration with a function of the test.
type testPart struct {
	name string
	make func() *routev3.RouteConfiguration
}

func (p *testPart) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	r.RawOne(ident.CDS, "*", p.name)
	return []piece.Piece{{Name: p.name, Message: p.make()}}, nil
}

func only(parts ...piece.Part) partsFunc {
	return func(r *index.Reader, _ index.ProxyClass, t ident.ResourceType) []piece.Part {
		if t != ident.RDS {
			return nil
		}
		r.RawOne(ident.CDS, "*", "parts")
		return parts
	}
}

func names(s *Set) []string {
	all := []string{}
	for _, r := range s.Resources {
		all = append(all, r.Name)
	}
	return all
}

// A part that panics keeps its last pieces and is made again with the next
// change; everything else continues.
func TestCatalogPanic(t *testing.T) {
	panics, version := false, "1"
	bad := &testPart{"bad", func() *routev3.RouteConfiguration {
		if panics {
			panic("boom")
		}
		return meshtest.Routes("bad", meshtest.To(version, 1))
	}}
	good := &testPart{"good", func() *routev3.RouteConfiguration {
		return meshtest.Routes("good", meshtest.To(version, 1))
	}}
	w := newTestWorld(t, only(bad, good))
	before := w.catalog.Set(index.ProxyClass{}, ident.RDS)
	for i, step := range []struct {
		version string
		panics  bool
		changed []string
	}{
		{"2", true, []string{"good"}},
		{"3", true, []string{"good"}},
		{"3", false, []string{"bad"}},
	} {
		panics, version = step.panics, step.version
		var got []string
		for _, ch := range w.change(meshtest.Put("b", meshtest.Cluster("bad", i)), meshtest.Put("g", meshtest.Cluster("good", i))) {
			got = append(got, ch.Names...)
		}
		if diff := cmp.Diff(step.changed, got); diff != "" {
			t.Errorf("step %d: changed (-want +got):\n%s", i, diff)
		}
		if ds := w.catalog.Diagnostics(); (len(ds) == 1 && ds[0].Code == "internal") != panics {
			t.Errorf("step %d: diagnostics %+v", i, ds)
		}
	}
	after := w.catalog.Set(index.ProxyClass{}, ident.RDS)
	if diff := cmp.Diff(names(before), names(after)); diff != "" {
		t.Errorf("names (-before +after):\n%s", diff)
	}

	panics = true
	fresh := newCatalog(w.pc, only(bad, good))
	if diff := cmp.Diff([]string{"good"}, names(fresh.Set(index.ProxyClass{}, ident.RDS))); diff != "" {
		t.Errorf("names if the first make of a part panics (-want +got):\n%s", diff)
	}
}

// A class keeps its parts if listing them panics.
func TestCatalogListPanic(t *testing.T) {
	panics := false
	part := &testPart{"a", func() *routev3.RouteConfiguration { return meshtest.EmptyRoutes("a") }}
	w := newTestWorld(t, func(r *index.Reader, class index.ProxyClass, rt ident.ResourceType) []piece.Part {
		parts := only(part)(r, class, rt)
		if panics {
			panic("boom")
		}
		return parts
	})
	before := w.catalog.Set(index.ProxyClass{}, ident.RDS)
	panics = true
	if changes := w.change(meshtest.Put("p", meshtest.Cluster("parts", 1))); len(changes) != 0 {
		t.Errorf("changed: %v", changes)
	}
	if w.catalog.Set(index.ProxyClass{}, ident.RDS) != before || len(w.catalog.Diagnostics()) != 1 {
		t.Errorf("diagnostics %v", w.catalog.Diagnostics())
	}
	panics = false
	w.change(meshtest.Put("p", meshtest.Cluster("parts", 2)))
	if ds := w.catalog.Diagnostics(); len(ds) != 0 {
		t.Errorf("diagnostics after a listing without panic: %v", ds)
	}
}

// A piece that Envoy would reject is served closed, so that its requests go nowhere
// else, and is reported (PRO-7).
func TestCatalogRefused(t *testing.T) {
	piece := &testPart{"piece", func() *routev3.RouteConfiguration {
		r := meshtest.Routes("piece", meshtest.To("a", 0))
		r.VirtualHosts[0].Domains = []string{"a", "b"}
		r.VirtualHosts = append(r.VirtualHosts, meshtest.Routes("", meshtest.To("c", 1)).VirtualHosts...)
		r.VirtualHosts[1].Name = "others"
		return r
	}}
	whole := &testPart{"whole", func() *routev3.RouteConfiguration {
		r := meshtest.Routes("whole", meshtest.To("a", 1))
		r.RequestHeadersToRemove = []string{"a\n"}
		return r
	}}
	good := &testPart{"good", func() *routev3.RouteConfiguration { return meshtest.EmptyRoutes("good") }}
	w := newTestWorld(t, only(piece, whole, good))
	set := w.catalog.Set(index.ProxyClass{}, ident.RDS)
	if diff := cmp.Diff([]string{"good", "piece", "whole"}, names(set)); diff != "" {
		t.Fatalf("names (-want +got):\n%s", diff)
	}
	served := func(name string) string {
		m := new(routev3.RouteConfiguration)
		if err := proto.Unmarshal(set.Find(name).Value(), m); err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		for _, h := range m.GetVirtualHosts() {
			r := h.GetRoutes()[0]
			fmt.Fprintf(&b, "%s %s %d %d; ", h.GetName(), h.GetDomains(), r.GetDirectResponse().GetStatus(), len(r.GetRoute().GetWeightedClusters().GetClusters()))
		}
		return m.GetName() + ": " + b.String()
	}
	if got, want := served("piece"), "piece: all [a b] 503 0; others [*] 0 1; "; got != want {
		t.Errorf("served is %q, want %q", got, want)
	}
	if got, want := served("whole"), "whole: held back [*] 503 0; "; got != want {
		t.Errorf("served is %q, want %q", got, want)
	}
	want := []problem.Diagnostic{{
		Severity: problem.Error, Code: "refused",
		Field:  "RouteConfiguration.request_headers_to_remove[0]",
		Reason: `RouteConfiguration "whole" would be refused by Envoy: value does not match regex pattern "^[^\x00\n\r]*$"`,
		Advice: "correct the objects that it is made of", Effect: "requests are answered with 503",
	}, {
		Severity: problem.Error, Code: "refused",
		Field:  "RouteConfiguration.virtual_hosts[0].routes[0].route.weighted_clusters.clusters",
		Reason: `RouteConfiguration "piece" would be refused by Envoy: the weights add up to 0`,
		Advice: "correct the objects that it is made of", Effect: "requests for its virtual host all are answered with 503",
	}}
	if diff := cmp.Diff(want, w.catalog.Diagnostics()); diff != "" {
		t.Errorf("diagnostics (-want +got):\n%s", diff)
	}
}

// A piece that Envoys accept is checked again for gRPC clients, although its bytes
// are already known.
func TestCatalogChecksForEachClient(t *testing.T) {
	part := &testPart{"a", func() *routev3.RouteConfiguration {
		r := meshtest.Routes("a", meshtest.To("c", 1))
		r.VirtualHosts[0].Routes[0].Match = &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_PathSeparatedPrefix{PathSeparatedPrefix: "/a"}}
		return r
	}}
	envoys, grpc := newTestWorld(t, only(part)), newTestWorld(t, only(part))
	served := envoys.catalog.Set(index.ProxyClass{}, ident.RDS)
	var class index.ProxyClass
	class.RDS.Client = index.ClientGRPC
	refused := grpc.catalog.Set(class, ident.RDS)
	is := new(routev3.RouteConfiguration)
	if err := proto.Unmarshal(refused.Find("a").Value(), is); err != nil || len(served.Resources) != 1 || served.Find("a").Same(refused.Find("a")) {
		t.Errorf("Envoys are served %q, gRPC clients %q, %v; only Envoys accept it", names(served), names(refused), err)
	}
	if h := is.GetVirtualHosts(); len(h) != 1 || h[0].GetDomains()[0] != "*" || h[0].GetRoutes()[0].GetRoute() != nil {
		t.Errorf("gRPC clients are served %v, want a virtual host whose requests they fail", is)
	}
	if ds := grpc.catalog.Diagnostics(); len(ds) != 1 || !strings.Contains(ds[0].Reason, "refused by gRPC") || ds[0].Effect != "clients fail the requests for its virtual host all" {
		t.Errorf("diagnostics %v", ds)
	}
}

// Two catalogs of a process share equal pieces.
func TestCatalogsSharePieces(t *testing.T) {
	part := &testPart{"a", func() *routev3.RouteConfiguration { return meshtest.Routes("a", meshtest.To("c", 1)) }}
	var pieces []*Encoded
	for range 2 {
		w := newTestWorld(t, only(part))
		for p := range w.catalog.Set(index.ProxyClass{}, ident.RDS).Resources[0].Pieces.All() {
			pieces = append(pieces, p)
		}
	}
	if len(pieces) != 2 || pieces[0] != pieces[1] {
		t.Errorf("the catalogs hold %v", pieces)
	}
}

// Verify finds a part that depends on an input that it did not read.
func TestVerifyFindsUnreadInputs(t *testing.T) {
	hidden := "1"
	w := newTestWorld(t, only(&testPart{"a", func() *routev3.RouteConfiguration {
		return meshtest.Routes("a", meshtest.To(hidden, 1))
	}}))
	w.catalog.Set(index.ProxyClass{}, ident.RDS)
	if err := w.catalog.Verify(); err != nil {
		t.Fatal(err)
	}
	hidden = "2"
	if err := w.catalog.Verify(); err == nil {
		t.Error("Verify found no problem")
	}
}

// Equal content has the same pointer in all classes, also after a change was
// undone.
func TestCatalogShares(t *testing.T) {
	w := newTestWorld(t, testParts, meshtest.Put("a", meshtest.Cluster("a", 1)), meshtest.Put("b", meshtest.Cluster("b", 1)),
		meshtest.PutFor("m", meshtest.Group("m"), meshtest.Cluster("c", 1)))
	all, m := w.class(""), w.class("m")
	before := w.catalog.Set(all, ident.CDS)
	if before.Find("a") != w.catalog.Set(m, ident.CDS).Find("a") {
		t.Error("two classes do not share a resource")
	}
	one, two := index.ProxyClass{RDS: index.RDSClass{Namespace: "x"}}, index.ProxyClass{RDS: index.RDSClass{Namespace: "y"}}
	if w.catalog.Set(one, ident.RDS) != w.catalog.Set(two, ident.RDS) {
		t.Error("two classes with equal parts do not share a set")
	}
	w.change(meshtest.Put("a", meshtest.Cluster("a", 2)))
	after := w.catalog.Set(all, ident.CDS)
	if after == before || after.Find("b") != before.Find("b") || after.Find("a").Same(before.Find("a")) {
		t.Error("a change of cluster a did not change exactly this cluster")
	}
	w.change(meshtest.Put("a", meshtest.Cluster("a", 1)))
	if w.catalog.Set(all, ident.CDS) != before {
		t.Error("the set is another one after the change was undone")
	}
}
