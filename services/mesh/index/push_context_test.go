package index_test

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	"meshlog.dev/services/mesh/index"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
)

func TestClassify(t *testing.T) {
	app := func(v string) *configv1.NodeSelector {
		s, err := structpb.NewStruct(map[string]any{"LABELS": map[string]any{"app": v}})
		if err != nil {
			t.Fatal(err)
		}
		return &configv1.NodeSelector{Metadata: s}
	}
	pc := PushContext(t,
		Put("everybody", Cluster("a", 1)),
		PutFor("edge", Group("edge"), Cluster("b", 1)),
		PutFor("edge-listener", Group("edge"), Listener("l", 1, "r")),
		PutFor("web", app("web"), Endpoints("a", 1)),
		PutFor("envoys", &configv1.NodeSelector{Cluster: "kinds", Client: "envoy"}, Listener("k", 1, "r")),
		PutFor("clients", &configv1.NodeSelector{Cluster: "kinds", Client: "grpc"}, Listener("k", 1, "r")),
		PutFor("zone", &configv1.NodeSelector{Cluster: "edge", Locality: &configv1.Locality{Zone: "z"}}, Routes("r")),
	)
	labelled, err := structpb.NewStruct(map[string]any{"LABELS": map[string]any{"app": "web", "other": "x"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		proxy proxy.Proxy
		want  index.ProxyClass
	}{
		"no selector but *": {proxy.Proxy{}, index.ProxyClass{CDS: index.CDSClass{Raw: "*"}}},
		"a cluster": {
			proxy.Proxy{Cluster: "edge"},
			index.ProxyClass{CDS: index.CDSClass{Raw: "*\ncluster=\"edge\""}, LDS: index.LDSClass{Raw: `cluster="edge"`}},
		},
		"more metadata than selected": {
			proxy.Proxy{Metadata: labelled},
			index.ProxyClass{CDS: index.CDSClass{Raw: "*"}, EDS: index.EDSClass{Raw: `metadata={"LABELS":{"app":"web"}}`}},
		},
		"all of a selector": {
			proxy.Proxy{Cluster: "edge", Locality: proxy.Locality{Region: "r", Zone: "z"}},
			index.ProxyClass{
				CDS: index.CDSClass{Raw: "*\ncluster=\"edge\""}, LDS: index.LDSClass{Raw: `cluster="edge"`},
				RDS: index.RDSClass{Raw: `cluster="edge" zone="z"`},
			},
		},
		"an Envoy": {
			proxy.Proxy{Cluster: "kinds"},
			index.ProxyClass{CDS: index.CDSClass{Raw: "*"}, LDS: index.LDSClass{Raw: `cluster="kinds" client="envoy"`}},
		},
		"a gRPC client": {
			proxy.Proxy{Cluster: "kinds", GRPC: true},
			index.ProxyClass{
				CDS: index.CDSClass{Client: index.ClientGRPC, Raw: "*"}, EDS: index.EDSClass{Client: index.ClientGRPC},
				LDS: index.LDSClass{Client: index.ClientGRPC, Raw: `cluster="kinds" client="grpc"`}, RDS: index.RDSClass{Client: index.ClientGRPC},
			},
		},
		"a part of a selector": {proxy.Proxy{Locality: proxy.Locality{Zone: "z"}}, index.ProxyClass{CDS: index.CDSClass{Raw: "*"}}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, index.Classify(pc, &test.proxy)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// Of two resources of a proxy with the same name one wins: by source, then by age,
// then by the object's name. The other is reported.
func TestConflicts(t *testing.T) {
	old, young := time.Unix(1, 0).UTC(), time.Unix(2, 0).UTC()
	for name, test := range map[string]struct {
		changes []Change
		winner  string // object
		losers  []string
	}{
		"by name":            {[]Change{Put("y", Cluster("a", 1)), Put("x", Cluster("a", 2))}, "x", []string{"y"}},
		"the older":          {[]Change{Put("x", Cluster("a", 1)).At(young), Put("y", Cluster("a", 2)).At(old)}, "y", []string{"x"}},
		"no age is youngest": {[]Change{Put("x", Cluster("a", 1)), Put("y", Cluster("a", 2)).At(young)}, "y", []string{"x"}},
		"by source": {
			[]Change{Put("x", Cluster("a", 1)).At(old), Put("y", Cluster("a", 2)).From("kubernetes")}, "y", []string{"x"},
		},
		"another type does not compete": {[]Change{Put("x", Cluster("a", 1)), Put("y", Endpoints("a", 2))}, "x", nil},
		"three":                         {[]Change{Put("x", Cluster("a", 1)), Put("y", Cluster("a", 2)), Put("z", Cluster("a", 3))}, "x", []string{"y", "z"}},
		"selectors that exclude each other": {
			[]Change{Put("x", Cluster("b", 1)), PutFor("y", Group("m"), Cluster("a", 1)), PutFor("z", Group("n"), Cluster("a", 2))}, "x", nil,
		},
		"clients of two kinds": {
			[]Change{
				Put("x", Cluster("b", 1)), PutFor("y", &configv1.NodeSelector{Client: "envoy"}, Cluster("a", 1)),
				PutFor("z", &configv1.NodeSelector{Client: "grpc"}, Cluster("a", 2)),
			}, "x", nil,
		},
		"selectors that overlap": {
			[]Change{Put("x", Cluster("a", 1)), PutFor("y", Group("m"), Cluster("a", 2))}, "x", []string{"y"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			pc := PushContext(t, test.changes...)
			if got := pc.Read().Raw(ident.CDS, "*"); len(got) != 1 || got[0].Key.Name != test.winner {
				t.Errorf("%d resources, the first of %v", len(got), got[0].Key)
			}
			var losers []string
			for _, d := range pc.Diagnostics() {
				losers = append(losers, d.Key.Name)
				if d.Code != "conflict" || d.Field == "" || d.Reason == "" || d.Advice == "" || d.Effect == "" {
					t.Errorf("diagnostic %+v", d)
				}
			}
			slices.Sort(losers)
			if diff := cmp.Diff(test.losers, losers); diff != "" {
				t.Errorf("losers (-want +got):\n%s", diff)
			}
		})
	}
}

// A raw resource without a namespace, which only a record made by hand can be, reaches no
// proxy, and its object says so (XDS-7).
func TestRawResourceWithoutNamespace(t *testing.T) {
	resource, err := anypb.New(Cluster("stolen", 1))
	if err != nil {
		t.Fatal(err)
	}
	pc := PushContext(t, Object("Resource", "", "nowhere", &configv1.Resource{Resource: resource}), Put("root", Cluster("root", 1)))
	for _, namespace := range []string{"", "shop"} {
		class := index.Classify(pc, &proxy.Proxy{Type: proxy.Sidecar, Namespace: namespace})
		var names []string
		for _, selector := range class.Raw(ident.CDS).Selectors() {
			for _, r := range pc.Read().Raw(ident.CDS, selector) {
				names = append(names, r.Name)
			}
		}
		if !slices.Equal(names, []string{"root"}) {
			t.Errorf("a proxy of namespace %q gets %q, want only root", namespace, names)
		}
	}
	want := []problem.Diagnostic{{
		Severity: problem.Error, Code: "invalid", Key: ident.Key{Source: "file", Instance: "default", Kind: "Resource", Name: "nowhere"}, Field: "metadata.namespace",
		Reason: "it has no namespace, and raw resources reach the proxies of their namespace", Advice: "write a namespace", Effect: "it is not served",
	}}
	if diff := cmp.Diff(want, pc.Diagnostics()); diff != "" {
		t.Errorf("diagnostics (-want +got):\n%s", diff)
	}
}

// After random changes in random steps, the PushContext equals one that is built
// from the world at once, and Next returns all inputs that differ.
func TestNextIsRebuild(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 2))
		w := world.NewWorld()
		pc := index.NewPushContext(w)
		for range 30 {
			var changes []Change
			for range 1 + r.IntN(4) {
				changes = append(changes, randomChange(r))
			}
			change := Rows(changes...)
			if r.IntN(10) == 0 {
				change.Rows = append(change.Rows, policy(t, r.IntN(2) == 0))
			}
			next, keys, err := w.Apply(change)
			if err != nil {
				t.Fatal(err)
			}
			before := pc
			var inputs []index.Input
			pc, inputs = pc.Next(next, keys)
			w = next
			rebuilt := index.NewPushContext(w)
			if diff := cmp.Diff(dump(rebuilt), dump(pc)); diff != "" {
				t.Fatalf("seed %d: -rebuilt +incremental:\n%s", seed, diff)
			}
			for _, in := range everyInput() {
				if !slices.Equal(winners(raw(before, in)), winners(raw(pc, in))) && !slices.Contains(inputs, in) {
					t.Fatalf("seed %d: %v changed, but Next did not return it", seed, in)
				}
			}
			for _, in := range everyInput() {
				typ := ident.ResourceType(in.Kind - index.InputRaw)
				for _, name := range []string{"a", "b", "c"} {
					was, is := before.Read().RawOne(typ, in.A, name), pc.Read().RawOne(typ, in.A, name)
					if !slices.Equal(print(one(was)), print(one(is))) && !slices.Contains(inputs, index.RawOneInput(typ, in.A, name)) {
						t.Fatalf("seed %d: %v %s changed, but Next did not return it", seed, in, name)
					}
				}
			}
			if !pc.SameClasses(before) {
				continue
			}
			for _, p := range proxies() {
				if index.Classify(pc, p) != index.Classify(before, p) {
					t.Fatalf("seed %d: a proxy has another class, but SameClasses is true", seed)
				}
			}
		}
	}
}

var groups = []string{"", "m", "n"}

func randomChange(r *rand.Rand) Change {
	object := fmt.Sprint("o", r.IntN(8))
	source := []string{"file", "kubernetes"}[r.IntN(2)]
	if r.IntN(4) == 0 {
		return Remove(object).From(source)
	}
	var nodes *configv1.NodeSelector
	if g := groups[r.IntN(len(groups))]; g != "" {
		nodes = Group(g)
	}
	name := []string{"a", "b", "c"}[r.IntN(3)]
	change := PutFor(object, nodes, Cluster(name, r.IntN(3)))
	if r.IntN(3) == 0 {
		change = PutFor(object, nodes, Endpoints(name, uint32(r.IntN(3))))
	}
	if r.IntN(2) == 0 {
		change = change.At(time.Unix(int64(r.IntN(3)), 0).UTC())
	}
	return change.From(source)
}

// policy returns a MeshPolicy with one of two orders of sources.
func policy(t *testing.T, fileFirst bool) world.RowChange {
	t.Helper()
	p := &configv1.MeshPolicy{SourcePriority: []string{"kubernetes", "file"}}
	if fileFirst {
		slices.Reverse(p.SourcePriority)
	}
	return Object("MeshPolicy", "", "default", p).Row()
}

func everyInput() []index.Input {
	var all []index.Input
	for t := range ident.ResourceTypes {
		for _, g := range groups {
			s := "*"
			if g != "" {
				s = fmt.Sprintf("cluster=%q", g)
			}
			all = append(all, index.RawInput(t, s))
		}
	}
	return all
}

func proxies() []*proxy.Proxy {
	var all []*proxy.Proxy
	for _, g := range groups {
		all = append(all, &proxy.Proxy{Cluster: g})
	}
	return all
}

func raw(pc *index.PushContext, in index.Input) []*index.RawResource {
	return pc.Read().Raw(ident.ResourceType(in.Kind-index.InputRaw), in.A)
}

func one(r *index.RawResource) []*index.RawResource {
	if r == nil {
		return nil
	}
	return []*index.RawResource{r}
}

func winners(resources []*index.RawResource) []string {
	out := []string{}
	for _, r := range resources {
		out = append(out, fmt.Sprintf("%s of %s", r.Name, r.Key))
	}
	return out
}

func print(resources []*index.RawResource) []string {
	out := []string{}
	for _, r := range resources {
		out = append(out, fmt.Sprintf("%s %x of %s", r.Name, sha256.Sum256(r.Value), r.Key))
	}
	return out
}

func dump(pc *index.PushContext) []string {
	var out []string
	for _, in := range everyInput() {
		out = append(out, fmt.Sprint(in, " ", strings.Join(print(raw(pc, in)), ", ")))
	}
	for _, p := range proxies() {
		out = append(out, index.Classify(pc, p).String())
	}
	for _, d := range pc.Diagnostics() {
		out = append(out, fmt.Sprintf("%+v", d))
	}
	return out
}

func BenchmarkClassify(b *testing.B) {
	var changes []Change
	for i := range 200 {
		changes = append(changes, PutFor(fmt.Sprint("o", i), Group(fmt.Sprint("g", i)), Cluster(fmt.Sprint("c", i), 1)))
	}
	pc := PushContext(b, changes...)
	p := &proxy.Proxy{Cluster: "g7"}
	b.ReportAllocs()
	for b.Loop() {
		index.Classify(pc, p)
	}
}

func BenchmarkNext(b *testing.B) {
	var changes []Change
	for i := range 10_000 {
		changes = append(changes, PutFor(fmt.Sprint("o", i), Group(fmt.Sprint("g", i%100)), Cluster(fmt.Sprint("c", i), 1)))
	}
	w, _, err := world.NewWorld().Apply(Rows(changes...))
	if err != nil {
		b.Fatal(err)
	}
	pc := index.NewPushContext(w)
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		i++
		next, keys, err := w.Apply(Rows(PutFor("o7", Group("g7"), Cluster("c7", i))))
		if err != nil {
			b.Fatal(err)
		}
		pc, _ = pc.Next(next, keys)
		w = next
	}
}
