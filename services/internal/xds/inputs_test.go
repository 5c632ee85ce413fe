package xds_test

import (
	"slices"
	"testing"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/model"
	"meshlog.dev/services/internal/model/modeltest"
	"meshlog.dev/services/internal/xds"
)

// What Generate says that it has read is all that its result depends on: over
// random changes, whoever has read nothing that changed comes out as before.
func TestInputsAreAllThatCounts(t *testing.T) {
	type key struct {
		t     model.ResourceType
		class model.ProxyClass
	}
	spared := 0
	for seed := range uint64(3) {
		pc := model.NewPushContext(model.NewWorld())
		results := map[key]xds.Result{}
		modeltest.Walk(t, 900+seed, 25, func(_, after *model.World, keys []ident.Key) {
			next, changed := pc.Next(after, keys)
			for _, class := range next.Classes() {
				for rt := range model.ResourceTypes {
					k := key{rt, class.Only(rt)}
					is := xds.Generate(next, k.class, rt)
					was, known := results[k]
					results[k] = is
					touched := slices.ContainsFunc(was.Inputs, func(in model.Input) bool { return slices.Contains(changed, in) })
					if !known || touched || !pc.SameClasses(next) {
						continue
					}
					spared++
					if was.Set.Sum != is.Set.Sum || !slices.Equal(was.Diagnostics, is.Diagnostics) {
						t.Errorf("seed %d: %s of %s is another, and nothing that it has read has changed: %v", seed, rt, class, xds.Changed(was.Set, is.Set))
					}
				}
			}
			pc = next
		})
	}
	if spared < 1000 {
		t.Errorf("only %d results had read nothing that changed", spared)
	}
}
