package world

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
)

const worldType = "type.googleapis.com/"

// worldValue returns m as the value of an object that was created at second
// created; 0 means no creation time.
func worldValue(t testing.TB, m proto.Message, created int64) ident.Value {
	t.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	v := ident.Value{Type: worldType + string(m.ProtoReflect().Descriptor().FullName()), Bytes: b}
	if created != 0 {
		v.Created = time.Unix(created, 0).UTC()
	}
	return v
}

// thing returns a Resource that contains text.
func thing(t testing.TB, text string, created int64) *ident.Value {
	v := worldValue(t, &configv1.Resource{Nodes: &configv1.NodeSelector{Cluster: text}}, created)
	return &v
}

// worldKey reads source/instance/kind/namespace/name.
func worldKey(t testing.TB, s string) ident.Key {
	t.Helper()
	k, _, err := ident.ParseRow("v/" + s)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func rowOf(k ident.Key, v *ident.Value) RowChange {
	r := RowChange{Row: k.Row()}
	if v != nil {
		r.Value = MarshalValue(*v)
	}
	return r
}

func worldApply(t testing.TB, w *World, rows ...RowChange) (*World, []string) {
	t.Helper()
	next, changed, err := w.Apply(Change{Rows: rows})
	if err != nil {
		t.Fatal(err)
	}
	return next, keyTexts(changed)
}

func keyTexts(keys []ident.Key) []string {
	var texts []string
	for _, k := range keys {
		texts = append(texts, strings.TrimPrefix(k.Row(), "v/"))
	}
	return texts
}

// served returns the Resources that w serves: their keys and texts.
func served(w *World) []string {
	var all []string
	for o := range w.Objects("Resource") {
		all = append(all, keyTexts([]ident.Key{o.Key})[0]+" "+o.Message.(*configv1.Resource).GetNodes().GetCluster())
	}
	return all
}

// Copies of one object from several sources come, change and go. After each step
// the copy that wins is served and the others are reported.
func TestWorldWinner(t *testing.T) {
	row := func(key string, v *ident.Value) RowChange { return rowOf(worldKey(t, key), v) }
	policy := func(sources ...string) RowChange {
		v := worldValue(t, &configv1.MeshPolicy{SourcePriority: sources}, 0)
		return row("file/a/MeshPolicy//default", &v)
	}
	w := NewWorld()
	for _, step := range []struct {
		name    string
		row     RowChange
		changed []string
		served  string
		losers  []string
	}{
		{"the only copy", row("file/a/Resource/ns/x", thing(t, "one", 50)), []string{"file/a/Resource/ns/x"}, "file/a/Resource/ns/x one", nil},
		{"unchanged", row("file/a/Resource/ns/x", thing(t, "one", 50)), nil, "file/a/Resource/ns/x one", nil},
		{"by source", row("kubernetes/c/Resource/ns/x", thing(t, "two", 90)), []string{"file/a/Resource/ns/x", "kubernetes/c/Resource/ns/x"},
			"kubernetes/c/Resource/ns/x two", []string{"file/a: the copy of kubernetes/c wins: it comes first by source priority"}},
		{"a source without priority", row("acme/a/Resource/ns/x", thing(t, "six", 1)), nil, "kubernetes/c/Resource/ns/x two",
			[]string{"acme/a: the copy of kubernetes/c wins: it comes first by source priority", "file/a: the copy of kubernetes/c wins: it comes first by source priority"}},
		{"without that source", row("acme/a/Resource/ns/x", nil), nil, "kubernetes/c/Resource/ns/x two", []string{"file/a: the copy of kubernetes/c wins: it comes first by source priority"}},
		{"by age", row("kubernetes/d/Resource/ns/x", thing(t, "three", 80)), []string{"kubernetes/c/Resource/ns/x", "kubernetes/d/Resource/ns/x"},
			"kubernetes/d/Resource/ns/x three", []string{"file/a: the copy of kubernetes/d wins: it comes first by source priority", "kubernetes/c: the copy of kubernetes/d wins: it is older"}},
		{"no age is youngest", row("kubernetes/d/Resource/ns/x", thing(t, "three", 0)), []string{"kubernetes/c/Resource/ns/x", "kubernetes/d/Resource/ns/x"},
			"kubernetes/c/Resource/ns/x two", []string{"file/a: the copy of kubernetes/c wins: it comes first by source priority", "kubernetes/d: the copy of kubernetes/c wins: it is older"}},
		{"by name", row("kubernetes/d/Resource/ns/x", thing(t, "three", 90)), nil,
			"kubernetes/c/Resource/ns/x two", []string{"file/a: the copy of kubernetes/c wins: it comes first by source priority", "kubernetes/d: the copy of kubernetes/c wins: it comes first by name"}},
		{"by policy", policy("file", "kubernetes"), []string{"file/a/MeshPolicy//default", "file/a/Resource/ns/x", "kubernetes/c/Resource/ns/x"},
			"file/a/Resource/ns/x one", []string{"kubernetes/c: the copy of file/a wins: it comes first by source priority", "kubernetes/d: the copy of file/a wins: it comes first by source priority"}},
		{"the winner changes", row("file/a/Resource/ns/x", thing(t, "four", 50)), []string{"file/a/Resource/ns/x"},
			"file/a/Resource/ns/x four", []string{"kubernetes/c: the copy of file/a wins: it comes first by source priority", "kubernetes/d: the copy of file/a wins: it comes first by source priority"}},
		{"the winner goes", row("file/a/Resource/ns/x", nil), []string{"file/a/Resource/ns/x", "kubernetes/c/Resource/ns/x"},
			"kubernetes/c/Resource/ns/x two", []string{"kubernetes/d: the copy of kubernetes/c wins: it comes first by name"}},
	} {
		var changed []string
		before := served(w)
		next, changed := worldApply(t, w, step.row)
		if diff := cmp.Diff(step.changed, changed); diff != "" {
			t.Errorf("%s: changed (-want +got):\n%s", step.name, diff)
		}
		if diff := cmp.Diff([]string{step.served}, served(next)); diff != "" {
			t.Errorf("%s: served (-want +got):\n%s", step.name, diff)
		}
		var losers []string
		for _, d := range next.Diagnostics() {
			losers = append(losers, d.Key.Shard().String()+": "+d.Reason)
		}
		if diff := cmp.Diff(step.losers, losers); diff != "" {
			t.Errorf("%s: losers (-want +got):\n%s", step.name, diff)
		}
		if diff := cmp.Diff(before, served(w)); diff != "" {
			t.Errorf("%s: Apply changed the world that it was called on:\n%s", step.name, diff)
		}
		w = next
	}
	if o := w.Winner(ident.Key{Kind: "Resource", Namespace: "ns", Name: "x"}); o == nil || o.Key.Source != "kubernetes" {
		t.Errorf("winner: %v", o)
	}
	for key, want := range map[string]bool{"kubernetes/c/Resource/ns/x": true, "kubernetes/d/Resource/ns/x": false, "file/a/Resource/ns/y": false} {
		if ok := w.Served(worldKey(t, key)) != nil; ok != want {
			t.Errorf("served %s: %v", key, ok)
		}
	}
}

func overlayChange(t testing.TB, id string, kind ident.OverlayKind, observed int64, values map[string]*ident.Value) RowChange {
	o := Overlay{ID: id, Kind: kind, Observed: time.Unix(observed, 0).UTC()}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		o.Values = append(o.Values, ident.OverlayValue{Key: worldKey(t, key), Value: values[key]})
	}
	return RowChange{Row: ident.OverlayRow(id), Value: MarshalOverlay(o)}
}

// An overlay's value is served instead of the last good one. A rollback goes before
// a hold, and a later rollback before an earlier one.
func TestWorldOverlays(t *testing.T) {
	const key = "file/a/Resource//x"
	over := func(id string, kind ident.OverlayKind, observed int64, text string) RowChange {
		values := map[string]*ident.Value{key: nil}
		if text != "" {
			values[key] = thing(t, text, 0)
		}
		return overlayChange(t, id, kind, observed, values)
	}
	w := NewWorld()
	for _, step := range []struct {
		name   string
		row    RowChange
		served []string
	}{
		{"a hold of a removed object", over("h", ident.Hold, 50, "held"), []string{key + " held"}},
		{"the object comes back", rowOf(worldKey(t, key), thing(t, "good", 0)), []string{key + " held"}},
		{"a rollback", over("r1", ident.Rollback, 10, "old"), []string{key + " old"}},
		{"a later rollback to no value", over("r2", ident.Rollback, 20, ""), nil},
		{"a third at the same time", over("r3", ident.Rollback, 20, "older"), []string{key + " older"}},
		{"the third has another value", over("r3", ident.Rollback, 20, "oldest"), []string{key + " oldest"}},
		{"the third is removed", RowChange{Row: ident.OverlayRow("r3")}, nil},
		{"the second is removed", RowChange{Row: ident.OverlayRow("r2")}, []string{key + " old"}},
		{"the first is for another object", overlayChange(t, "r1", ident.Rollback, 10, map[string]*ident.Value{"file/a/Resource//y": thing(t, "why", 0)}),
			[]string{key + " held", "file/a/Resource//y why"}},
		{"the hold is approved", RowChange{Row: ident.OverlayRow("h")}, []string{key + " good", "file/a/Resource//y why"}},
		{"no overlays", RowChange{Row: ident.OverlayRow("r1")}, []string{key + " good"}},
		{"no object", rowOf(worldKey(t, key), nil), nil},
	} {
		w, _ = worldApply(t, w, step.row)
		if diff := cmp.Diff(step.served, served(w)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
	}
	if w.places.Len() != 0 || w.opaque.Len() != 0 || len(w.kinds) != 0 || len(w.overlays) != 0 {
		t.Errorf("an empty world still has %d places, %v kinds, %v overlays", w.places.Len(), w.kinds, w.overlays)
	}
}

// Rows that this build cannot read are kept and reported, and do not affect other
// rows.
func TestWorldOpaque(t *testing.T) {
	good, newer := worldKey(t, "kubernetes/c/Resource//x"), worldKey(t, "file/a/Resource//x")
	w, _ := worldApply(t, NewWorld(),
		rowOf(newer, thing(t, "fine", 0)),
		rowOf(good, &ident.Value{Type: "type.googleapis.com/meshlog.config.v2.Resource"}), // would win
		rowOf(worldKey(t, "file/a/Gizmo//g"), thing(t, "g", 0)),
		RowChange{Row: "z/of another time", Value: []byte{1}},
	)
	if diff := cmp.Diff([]string{"file/a/Resource//x fine"}, served(w)); diff != "" {
		t.Errorf("served (-want +got):\n%s", diff)
	}
	var got []string
	for _, d := range w.Diagnostics() {
		got = append(got, fmt.Sprintf("%s %s: %s", d.Code, d.Key.Name, d.Reason))
	}
	want := []string{
		`unreadable : row "z/of another time" is of no kind that this build knows`,
		`unreadable g: this build knows no kind "Gizmo"`,
		`unreadable x: a Resource holds type.googleapis.com/meshlog.config.v1.Resource, not "type.googleapis.com/meshlog.config.v2.Resource"`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("diagnostics (-want +got):\n%s", diff)
	}
	w, changed := worldApply(t, w, rowOf(good, thing(t, "read", 0)), rowOf(worldKey(t, "file/a/Gizmo//g"), nil), RowChange{Row: "z/of another time"})
	if left := w.opaque.Len() + len(w.unknown); left > 0 || len(changed) != 2 {
		t.Errorf("%d opaque rows, changed %v", left, changed)
	}
}

func TestWorldRefuses(t *testing.T) {
	key := worldKey(t, "file/a/Resource//x")
	for name, row := range map[string]RowChange{
		"a key of three parts":  {Row: "v/a/b/c"},
		"an unreadable value":   {Row: key.Row(), Value: []byte{0xff}},
		"an overlay of no key":  {Row: "o/x", Value: []byte{0x1a, 2, 0x0a, 0}},
		"an overlay without id": {Row: "o/"},
	} {
		w, _ := worldApply(t, NewWorld(), rowOf(key, thing(t, "x", 0)))
		if next, _, err := w.Apply(Change{Rows: []RowChange{row}}); err == nil || next != nil {
			t.Errorf("%s: %v", name, err)
		}
		if len(served(w)) != 1 {
			t.Errorf("%s: the world changed", name)
		}
	}
}

func TestPolicy(t *testing.T) {
	message := func(m *configv1.MeshPolicy, key string, created int64) RowChange {
		v := worldValue(t, m, created)
		return rowOf(worldKey(t, key), &v)
	}
	defaults := DefaultPolicy()
	for _, test := range []struct {
		name string
		rows []RowChange
		want Policy
	}{
		{"none", nil, defaults},
		{"empty", []RowChange{message(&configv1.MeshPolicy{}, "file/a/MeshPolicy//default", 0)}, defaults},
		{"with another name", []RowChange{message(&configv1.MeshPolicy{RootNamespace: "x"}, "file/a/MeshPolicy//other", 0)}, defaults},
		{"with a namespace", []RowChange{message(&configv1.MeshPolicy{RootNamespace: "x"}, "file/a/MeshPolicy/x/default", 0)}, defaults},
		{"everything", []RowChange{message(&configv1.MeshPolicy{
			SourcePriority:  []string{"nacos"},
			RequiredSources: []*configv1.RequiredSource{{Source: "file", Instance: "a", AcceptPartial: true}},
			Guard:           &configv1.Guard{Disabled: true, MaxLossPercent: 7, MinKeys: 9},
			RootNamespace:   "root", DomainSuffix: "mesh.example", MaxConnectionDuration: durationpb.New(0),
		}, "file/a/MeshPolicy//default", 0)}, Policy{
			SourcePriority: []string{"nacos"}, Required: []RequiredSource{{ident.Shard{Source: "file", Instance: "a"}, true}},
			Guard: Guard{true, 7, 9}, RootNamespace: "root", DomainSuffix: "mesh.example",
		}},
		{"two, the default priority decides", []RowChange{
			message(&configv1.MeshPolicy{RootNamespace: "f", SourcePriority: []string{"file"}}, "file/a/MeshPolicy//default", 0),
			message(&configv1.MeshPolicy{RootNamespace: "k", SourcePriority: []string{"file"}}, "kubernetes/c/MeshPolicy//default", 0),
		}, Policy{SourcePriority: []string{"file"}, Guard: defaults.Guard, RootNamespace: "k", DomainSuffix: defaults.DomainSuffix, MaxConnectionDuration: time.Hour}},
	} {
		w, _ := worldApply(t, NewWorld(), test.rows...)
		if diff := cmp.Diff(test.want, w.Policy()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
	w := NewWorld()
	w.Policy().SourcePriority[0] = "mine"
	if diff := cmp.Diff(defaults, w.Policy()); diff != "" {
		t.Errorf("a caller changed the policy:\n%s", diff)
	}
}

func TestMeshConfig(t *testing.T) {
	config := worldValue(t, &meshconfig.MeshConfig{
		ConnectTimeout:        durationpb.New(time.Second),
		OutboundTrafficPolicy: &meshconfig.MeshConfig_OutboundTrafficPolicy{}, // REGISTRY_ONLY
		DefaultServiceExportTo: []string{
			".",
		},
	}, 0)
	policy := worldValue(t, &configv1.MeshPolicy{RootNamespace: "root"}, 0)
	w, _ := worldApply(t, NewWorld(), rowOf(worldKey(t, "file/a/MeshConfig//default"), &config))
	w, _ = worldApply(t, w, rowOf(worldKey(t, "file/a/MeshPolicy//default"), &policy))
	got := w.MeshConfig()
	want := proto.Clone(NewWorld().MeshConfig()).(*meshconfig.MeshConfig)
	want.ConnectTimeout = durationpb.New(time.Second)
	want.OutboundTrafficPolicy = &meshconfig.MeshConfig_OutboundTrafficPolicy{}
	want.DefaultServiceExportTo = []string{"."}
	want.RootNamespace = "root"
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if want.GetProxyListenPort() != 15001 || want.GetDnsRefreshRate().GetSeconds() != 60 || !slices.Equal(want.GetDefaultVirtualServiceExportTo(), []string{"*"}) {
		t.Errorf("defaults: %v", want)
	}
	w, _ = worldApply(t, w, rowOf(worldKey(t, "file/a/MeshConfig//default"), nil), rowOf(worldKey(t, "file/a/MeshPolicy//default"), nil))
	if diff := cmp.Diff(NewWorld().MeshConfig(), w.MeshConfig(), protocmp.Transform()); diff != "" {
		t.Errorf("after its removal (-want +got):\n%s", diff)
	}
}

// randomRow returns a random row of a small world, so that rows often have the same
// key.
func randomRow(t testing.TB, r *rand.Rand) RowChange {
	pick := func(words ...string) string { return words[r.IntN(len(words))] }
	key := func() string {
		return pick("file", "kubernetes", "consul", "acme") + "/" + pick("a", "b") + "/" + pick("Resource", "Resource", "Gizmo") + "/" + pick("", "ns") + "/" + pick("x", "y", "z")
	}
	value := func() *ident.Value {
		switch r.IntN(5) {
		case 0:
			return nil
		case 1:
			return &ident.Value{Type: "type.googleapis.com/other"}
		}
		return thing(t, pick("one", "two"), int64(r.IntN(3)))
	}
	switch r.IntN(8) {
	case 0:
		id := pick("o1", "o2", "o3")
		if r.IntN(3) == 0 {
			return RowChange{Row: ident.OverlayRow(id)}
		}
		return overlayChange(t, id, ident.OverlayKind(1+r.IntN(2)), int64(r.IntN(3)), map[string]*ident.Value{key(): value(), key(): value()})
	case 1:
		k := worldKey(t, pick("file", "kubernetes")+"/a/MeshPolicy//default")
		if r.IntN(2) == 0 {
			return rowOf(k, nil)
		}
		v := worldValue(t, &configv1.MeshPolicy{SourcePriority: []string{pick("file", "acme"), "consul"}, RootNamespace: pick("", "root")}, 0)
		return rowOf(k, &v)
	case 2:
		return RowChange{Row: "z/" + pick("1", "2"), Value: [][]byte{nil, {1}}[r.IntN(2)]}
	}
	return rowOf(worldKey(t, key()), value())
}

// describe returns everything that a world's methods return.
func describe(w *World) []string {
	all := served(w)
	all = append(all, fmt.Sprintf("%+v", w.Policy()), "root "+w.MeshConfig().GetRootNamespace(), fmt.Sprint("opaque ", w.opaque.Len()+len(w.unknown)))
	for _, d := range w.Diagnostics() {
		all = append(all, fmt.Sprintf("%+v", d))
	}
	return all
}

// TestWorldIncremental checks that a world that changed step by step equals one
// built from nothing, and that the changed keys are exactly those that differ.
func TestWorldIncremental(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 5))
		w, content := NewWorld(), map[string][]byte{}
		for step := range 40 {
			var c Change
			if c.Reset = r.IntN(12) == 0; c.Reset {
				kept := map[string][]byte{}
				for row, b := range content {
					if r.IntN(3) > 0 {
						kept[row] = b
						c.Rows = append(c.Rows, RowChange{Row: row, Value: b})
					}
				}
				content = kept
			}
			for range r.IntN(6) {
				row := randomRow(t, r)
				if c.Rows = append(c.Rows, row); row.Value == nil {
					delete(content, row.Row)
				} else {
					content[row.Row] = row.Value
				}
			}
			next, changed, err := w.Apply(c)
			if err != nil {
				t.Fatal(err)
			}
			var rows []RowChange
			for row, b := range content {
				rows = append(rows, RowChange{Row: row, Value: b})
			}
			rebuilt, _ := worldApply(t, NewWorld(), rows...)
			if diff := cmp.Diff(describe(rebuilt), describe(next)); diff != "" {
				t.Fatalf("seed %d, step %d (-rebuilt +incremental):\n%s", seed, step, diff)
			}
			if diff := cmp.Diff(differing(w, next), keyTexts(changed)); diff != "" {
				t.Fatalf("seed %d, step %d: changed (-want +got):\n%s", seed, step, diff)
			}
			w = next
		}
	}
}

// differing returns the keys that have different values in two worlds.
func differing(a, b *World) []string {
	values := func(w *World) map[ident.Key]string {
		all := map[ident.Key]string{}
		for _, kind := range []string{"Resource", "MeshPolicy"} {
			for o := range w.Objects(kind) {
				all[o.Key] = string(MarshalValue(o.Value))
			}
		}
		return all
	}
	was, is := values(a), values(b)
	differ := map[ident.Key]bool{}
	for k := range was {
		differ[k] = differ[k] || is[k] != was[k]
	}
	for k := range is {
		differ[k] = differ[k] || is[k] != was[k]
	}
	var keys []ident.Key
	for k, d := range differ {
		if d {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, CompareKeys)
	return keyTexts(keys)
}

func BenchmarkWorldApply(b *testing.B) {
	var rows []RowChange
	for i := range 100_000 {
		rows = append(rows, rowOf(worldKey(b, fmt.Sprintf("file/a/Resource/ns%d/x%d", i%100, i)), thing(b, "one", 0)))
	}
	w, _ := worldApply(b, NewWorld(), rows...)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		k := worldKey(b, fmt.Sprintf("file/a/Resource/ns%d/x%d", i%100, i%100_000))
		w, _ = worldApply(b, w, rowOf(k, thing(b, fmt.Sprint("n", i), 0)))
	}
}

// TestDefaultMeshPolicyGivesWaySilently checks that a user's MeshPolicy wins over
// the default of `meshlog up` without a diagnostic.
func TestDefaultMeshPolicyGivesWaySilently(t *testing.T) {
	row := func(source string) RowChange {
		k := ident.Key{Source: source, Instance: "default", Kind: "MeshPolicy", Name: "default"}
		b, err := proto.Marshal(&configv1.MeshPolicy{DomainSuffix: source + ".test"})
		if err != nil {
			t.Fatal(err)
		}
		v := ident.Value{Type: "type.googleapis.com/meshlog.config.v1.MeshPolicy", Bytes: b}
		return RowChange{Row: k.Row(), Value: MarshalValue(v)}
	}
	w, _, err := NewWorld().Apply(Change{Rows: []RowChange{row("up"), row("file")}})
	if err != nil {
		t.Fatal(err)
	}
	if got := w.Policy().DomainSuffix; got != "file.test" {
		t.Errorf("the domain suffix is %s, want that of the file's policy", got)
	}
	if ds := w.Diagnostics(); len(ds) != 0 {
		t.Errorf("diagnostics %v, want none", ds)
	}
}
