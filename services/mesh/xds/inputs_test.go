package xds_test

import (
	"slices"
	"testing"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds"
)

// Generate reports all inputs that its result depends on: over random changes the
// result for a class does not change if none of its inputs did.
func TestInputsAreComplete(t *testing.T) {
	type key struct {
		t     ident.ResourceType
		class index.ProxyClass
	}
	spared := 0
	for seed := range uint64(3) {
		pc := index.NewPushContext(world.NewWorld())
		results := map[key]xds.Result{}
		meshtest.Walk(t, 900+seed, 25, func(_, after *world.World, keys []ident.Key) {
			next, changed := pc.Next(after, keys)
			for _, class := range next.Classes() {
				for rt := range ident.ResourceTypes {
					k := key{rt, class.Only(rt)}
					is := xds.Generate(next, k.class, rt)
					was, known := results[k]
					results[k] = is
					touched := slices.ContainsFunc(was.Inputs, func(in index.Input) bool { return slices.Contains(changed, in) })
					if !known || touched || !pc.SameClasses(next) {
						continue
					}
					spared++
					if was.Set.Sum != is.Set.Sum || !slices.Equal(was.Diagnostics, is.Diagnostics) {
						t.Errorf("seed %d: %s of %s changed although none of its inputs did: %v", seed, rt, class, xds.Changed(was.Set, is.Set))
					}
				}
			}
			pc = next
		})
	}
	if spared < 1000 {
		t.Errorf("only %d results had no changed input", spared)
	}
}
