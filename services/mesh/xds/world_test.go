package xds_test

import (
	"fmt"
	"slices"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds"
)

// kept is a Catalog that follows a random world, with the Sets that it reported
// for each class.
type kept struct {
	*xds.Catalog
	pc   *index.PushContext
	sets map[classOf]*xds.Set
}

type classOf struct {
	t  ident.ResourceType
	of index.ProxyClass
}

// next moves to a world and checks that the Catalog reports each change.
func (k *kept) next(w *world.World, keys []ident.Key) error {
	var changed []index.Input
	before := k.pc
	k.pc, changed = k.pc.Next(w, keys)
	for _, ch := range k.Update(k.pc, changed) {
		c := classOf{ch.Type, *ch.Class}
		if want := xds.Changed(k.sets[c], ch.Set); !slices.Equal(want, ch.Names) || len(want) == 0 {
			return fmt.Errorf("%v: Update reports changes of %q; %q changed", c, ch.Names, want)
		}
		k.sets[c] = ch.Set
	}
	if !k.pc.SameClasses(before) {
		k.choose()
	}
	for c, set := range k.sets {
		if k.Set(c.of, c.t) != set {
			return fmt.Errorf("%v changed, but Update did not report it", c)
		}
	}
	return nil
}

// verify runs Verify at every fourth step, because it is slow.
func (k *kept) verify(step int) error {
	if step%4 > 0 {
		return nil
	}
	return k.Verify()
}

// whole checks that Envoy accepts whole RouteConfigurations; the Catalog checks
// only their pieces.
func (k *kept) whole() error {
	seen := map[*xds.Resource]bool{}
	for c, set := range k.sets {
		for _, r := range set.Resources {
			if c.t != ident.RDS || r.Pieces.Len() == 1 || seen[r] {
				continue
			}
			seen[r] = true
			m := new(routev3.RouteConfiguration)
			if err := proto.Unmarshal(r.Value(), m); err != nil {
				return err
			}
			for _, p := range validate.CheckEnvoy(m) {
				return fmt.Errorf("%v: %s: %s: %s", c, r.Name, p.Field, p.Reason)
			}
		}
	}
	return nil
}

// choose makes the Catalog keep the classes of all kinds of proxies, and those of
// Classes, and no others.
func (k *kept) choose() {
	sets := map[classOf]*xds.Set{}
	classes := k.pc.Classes()
	for _, p := range meshtest.AnyProxy() {
		classes = append(classes, index.Classify(k.pc, p))
	}
	for _, of := range classes {
		for t := range ident.ResourceTypes {
			c := classOf{t, of.Only(t)}
			sets[c] = k.Set(c.of, t)
		}
	}
	for c := range k.sets {
		if sets[c] == nil {
			k.Drop(c.of, c.t)
		}
	}
	k.sets = sets
}

// Over random changes of everything, for every class: kept Sets equal generated
// ones byte for byte, a part made again without changed inputs is equal, and
// clients accept all resources.
func TestKeptIsGenerated(t *testing.T) {
	for seed := range uint64(6) {
		pc := index.NewPushContext(world.NewWorld())
		k := &kept{Catalog: xds.NewCatalog(pc), pc: pc, sets: map[classOf]*xds.Set{}}
		k.choose()
		step := 0
		meshtest.Walk(t, 100+seed, 20, func(_, after *world.World, keys []ident.Key) {
			step++
			if err := k.next(after, keys); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
			if err := k.verify(step); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
			rebuilt := index.NewPushContext(after)
			fresh := xds.NewCatalog(rebuilt)
			for c, set := range k.sets {
				want := fresh.Set(c.of, c.t)
				if names := xds.Changed(want, set); want.Sum != set.Sum || len(names) > 0 {
					t.Fatalf("seed %d, step %d: %v: %q differ from those of a new Catalog of the same world", seed, step, c, names)
				}
			}
			if diff := cmp.Diff(fresh.Diagnostics(), k.Diagnostics()); diff != "" {
				t.Fatalf("seed %d, step %d: problems (-from nothing +kept):\n%s", seed, step, diff)
			}
			if err := k.whole(); err != nil {
				t.Errorf("seed %d, step %d: %v", seed, step, err)
			}
			for _, d := range k.Diagnostics() {
				if d.Code == "refused" && d.Key.Kind != "EnvoyFilter" || d.Code == "internal" { // a refused patch is left out
					t.Errorf("seed %d, step %d: a resource is generated but not served: %+v", seed, step, d)
				}
			}
		})
	}
}
