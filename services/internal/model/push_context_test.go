package model_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/structpb"

	configv1 "meshlog.dev/proto/meshlog/config/v1"
	"meshlog.dev/services/internal/model"
	. "meshlog.dev/services/internal/model/modeltest"
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
		PutFor("zone", &configv1.NodeSelector{Cluster: "edge", Locality: &configv1.Locality{Zone: "z"}}, Routes("r")),
	)
	labelled, err := structpb.NewStruct(map[string]any{"LABELS": map[string]any{"app": "web", "other": "x"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		proxy model.Proxy
		want  model.ProxyClass
	}{
		"nothing in particular": {model.Proxy{}, model.ProxyClass{CDS: model.CDSClass{Raw: "*"}}},
		"a cluster": {
			model.Proxy{Cluster: "edge"},
			model.ProxyClass{CDS: model.CDSClass{Raw: "*\ncluster=\"edge\""}, LDS: model.LDSClass{Raw: `cluster="edge"`}},
		},
		"metadata with more in it": {
			model.Proxy{Metadata: labelled},
			model.ProxyClass{CDS: model.CDSClass{Raw: "*"}, EDS: model.EDSClass{Raw: `metadata={"LABELS":{"app":"web"}}`}},
		},
		"all of a selector": {
			model.Proxy{Cluster: "edge", Locality: model.Locality{Region: "r", Zone: "z"}},
			model.ProxyClass{
				CDS: model.CDSClass{Raw: "*\ncluster=\"edge\""}, LDS: model.LDSClass{Raw: `cluster="edge"`},
				RDS: model.RDSClass{Raw: `cluster="edge" zone="z"`},
			},
		},
		"a part of a selector": {model.Proxy{Locality: model.Locality{Zone: "z"}}, model.ProxyClass{CDS: model.CDSClass{Raw: "*"}}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, model.Classify(pc, &test.proxy)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// Of two resources of one name for one proxy, one wins: by source, then by
// age, then by name; the other is reported.
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
		"another type has no part in it": {[]Change{Put("x", Cluster("a", 1)), Put("y", Endpoints("a", 2))}, "x", nil},
		"three":                          {[]Change{Put("x", Cluster("a", 1)), Put("y", Cluster("a", 2)), Put("z", Cluster("a", 3))}, "x", []string{"y", "z"}},
		"selectors that exclude each other": {
			[]Change{Put("x", Cluster("b", 1)), PutFor("y", Group("m"), Cluster("a", 1)), PutFor("z", Group("n"), Cluster("a", 2))}, "x", nil,
		},
		"selectors that overlap": {
			[]Change{Put("x", Cluster("a", 1)), PutFor("y", Group("m"), Cluster("a", 2))}, "x", []string{"y"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			pc := PushContext(t, test.changes...)
			if got := pc.Read().Raw(model.CDS, "*"); len(got) != 1 || got[0].Key.Name != test.winner {
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

// Whatever changes in whatever steps, the PushContext is that of the world
// built at once, and the inputs that it names are those that differ.
func TestNextIsRebuild(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 2))
		w := model.NewWorld()
		pc := model.NewPushContext(w)
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
			var inputs []model.Input
			pc, inputs = pc.Next(next, keys)
			w = next
			rebuilt := model.NewPushContext(w)
			if diff := cmp.Diff(dump(rebuilt), dump(pc)); diff != "" {
				t.Fatalf("seed %d: -rebuilt +incremental:\n%s", seed, diff)
			}
			for _, in := range everyInput() {
				if !slices.Equal(winners(raw(before, in)), winners(raw(pc, in))) && !slices.Contains(inputs, in) {
					t.Fatalf("seed %d: %v changed and is not named", seed, in)
				}
			}
			for _, in := range everyInput() {
				typ := model.ResourceType(in.Kind - model.InputRaw)
				for _, name := range []string{"a", "b", "c"} {
					was, is := before.Read().RawOne(typ, in.A, name), pc.Read().RawOne(typ, in.A, name)
					if !slices.Equal(print(one(was)), print(one(is))) && !slices.Contains(inputs, model.RawOneInput(typ, in.A, name)) {
						t.Fatalf("seed %d: %v %s changed and is not named", seed, in, name)
					}
				}
			}
			if !pc.SameClasses(before) {
				continue
			}
			for _, p := range proxies() {
				if model.Classify(pc, p) != model.Classify(before, p) {
					t.Fatalf("seed %d: another class by the same selectors", seed)
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

// policy is a MeshPolicy with one of two orders of sources.
func policy(t *testing.T, fileFirst bool) model.RowChange {
	t.Helper()
	p := &configv1.MeshPolicy{SourcePriority: []string{"kubernetes", "file"}}
	if fileFirst {
		slices.Reverse(p.SourcePriority)
	}
	return Policy(p)
}

func everyInput() []model.Input {
	var all []model.Input
	for t := range model.ResourceTypes {
		for _, g := range groups {
			s := "*"
			if g != "" {
				s = fmt.Sprintf("cluster=%q", g)
			}
			all = append(all, model.RawInput(t, s))
		}
	}
	return all
}

func proxies() []*model.Proxy {
	var all []*model.Proxy
	for _, g := range groups {
		all = append(all, &model.Proxy{Cluster: g})
	}
	return all
}

func raw(pc *model.PushContext, in model.Input) []*model.RawResource {
	return pc.Read().Raw(model.ResourceType(in.Kind-model.InputRaw), in.A)
}

func one(r *model.RawResource) []*model.RawResource {
	if r == nil {
		return nil
	}
	return []*model.RawResource{r}
}

func winners(resources []*model.RawResource) []string {
	out := []string{}
	for _, r := range resources {
		out = append(out, fmt.Sprintf("%s of %s", r.Name, r.Key))
	}
	return out
}

func print(resources []*model.RawResource) []string {
	out := []string{}
	for _, r := range resources {
		out = append(out, fmt.Sprintf("%s %x of %s", r.Name, r.Hash[:4], r.Key))
	}
	return out
}

func dump(pc *model.PushContext) []string {
	var out []string
	for _, in := range everyInput() {
		out = append(out, fmt.Sprint(in, " ", strings.Join(print(raw(pc, in)), ", ")))
	}
	for _, p := range proxies() {
		out = append(out, model.Classify(pc, p).String())
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
	p := &model.Proxy{Cluster: "g7"}
	b.ReportAllocs()
	for b.Loop() {
		model.Classify(pc, p)
	}
}

func BenchmarkNext(b *testing.B) {
	var changes []Change
	for i := range 10_000 {
		changes = append(changes, PutFor(fmt.Sprint("o", i), Group(fmt.Sprint("g", i%100)), Cluster(fmt.Sprint("c", i), 1)))
	}
	w, _, err := model.NewWorld().Apply(Rows(changes...))
	if err != nil {
		b.Fatal(err)
	}
	pc := model.NewPushContext(w)
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
