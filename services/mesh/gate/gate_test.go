package gate_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/gate"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/world"
)

// gated is a world that goes through a gate.
type gated struct {
	t     testing.TB
	gate  *gate.Gate
	world *world.World
}

func newGated(t testing.TB) *gated {
	return &gated{t: t, gate: gate.New(), world: world.NewWorld()}
}

// change is the problems, in a word each, after a change.
func (g *gated) change(changes ...meshtest.Change) []string {
	g.t.Helper()
	next, keys, err := g.world.Apply(meshtest.Rows(changes...))
	if err != nil {
		g.t.Fatal(err)
	}
	problems, err := g.gate.Build(next, keys)
	if err != nil {
		g.t.Fatal(err)
	}
	g.world = next
	var all []string
	for _, p := range problems {
		all = append(all, p.Key.Namespace+"/"+p.Key.Name+" "+p.Code)
	}
	slices.Sort(all)
	return all
}

// rule has the same subset so often.
func rule(namespace string, subsets int, exportTo ...string) meshtest.Change {
	r := &networking.DestinationRule{Host: "x.a.svc.cluster.local", ExportTo: exportTo}
	for range subsets {
		r.Subsets = append(r.Subsets, &networking.Subset{Name: "v1", Labels: map[string]string{"version": "v1"}})
	}
	return meshtest.Object("DestinationRule", namespace, "r", r)
}

// What comes of the world is known before it is published: problems that only
// making it shows are reported, also those that one namespace alone sees.
func TestGateSaysWhatMakingShows(t *testing.T) {
	g := newGated(t)
	for _, step := range []struct {
		name    string
		changes []meshtest.Change
		want    []string
	}{
		{"a service", []meshtest.Change{meshtest.Service("a", "x", "80 http"), meshtest.Slice("a", "x", "80 http", "10.0.0.9")}, nil},
		{"a bad rule", []meshtest.Change{rule("a", 2)}, []string{"a/r conflict"}},
		{"one of a namespace too", []meshtest.Change{rule("b", 2, ".")}, []string{"a/r conflict", "b/r conflict"}},
		{"corrected", []meshtest.Change{rule("a", 1)}, []string{"b/r conflict"}},
		{"the namespace is like all others", []meshtest.Change{rule("b", 1).Gone()}, nil},
	} {
		if diff := cmp.Diff(step.want, g.change(step.changes...)); diff != "" {
			t.Errorf("%s: problems (-want +got):\n%s", step.name, diff)
		}
	}
}

// A panic keeps one version back, not those after it.
func TestGatePanic(t *testing.T) {
	g := newGated(t)
	g.change(meshtest.Service("a", "x", "80 http"))
	if _, err := g.gate.Build(nil, nil); err == nil {
		t.Error("a world that is none is built")
	}
	if diff := cmp.Diff([]string{"a/r conflict"}, g.change(rule("a", 2))); diff != "" {
		t.Errorf("problems after it (-want +got):\n%s", diff)
	}
}
