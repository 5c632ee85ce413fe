package xds

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
)

func timeoutOf(host string, seconds int) meshtest.Change {
	return meshtest.Object("VirtualService", "shop", host, &networking.VirtualService{
		Hosts: []string{host + ".shop.svc.cluster.local"},
		Http: []*networking.HTTPRoute{{
			Name:  fmt.Sprintf("%ds", seconds),
			Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: host + ".shop.svc.cluster.local"}}},
		}},
	})
}

// texts returns the bytes of all resources of a class, by type and name.
func texts(c *Catalog, class index.ProxyClass) map[string]string {
	all := map[string]string{}
	for t := range ident.ResourceTypes {
		for _, r := range c.Set(class.Only(t), t).Resources {
			all[t.String()+" "+r.Name] = string(r.Value())
		}
	}
	return all
}

// However a world changes, a pinned proxy is served what it would be served in a world in
// which the values of its pin lie over all others, and no other proxy is.
func TestPinnedClasses(t *testing.T) {
	pinned := &proxy.Proxy{ID: "p", Type: proxy.Sidecar, Namespace: "shop", Labels: map[string]string{"app": "cart", "v": "1"}}
	other := &proxy.Proxy{ID: "o", Type: proxy.Sidecar, Namespace: "shop"}
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 1))
		hosts := []string{"a", "b", "c"}
		change := func() meshtest.Change {
			h := hosts[r.IntN(len(hosts))]
			var c meshtest.Change
			switch r.IntN(6) {
			case 0:
				c = meshtest.Service("shop", h, "80 http")
			case 1:
				return meshtest.Slice("shop", h, "80 http", fmt.Sprintf("10.0.0.%d", 1+r.IntN(3)))
			case 2, 3:
				c = timeoutOf(h, 1+r.IntN(3))
			default:
				c = meshtest.Object("DestinationRule", "shop", h, &networking.DestinationRule{
					Host: h + ".shop.svc.cluster.local", Subsets: []*networking.Subset{{Name: fmt.Sprint("s", r.IntN(2))}},
				})
			}
			if r.IntN(4) == 0 {
				return c.Gone()
			}
			return c
		}
		pin := func() meshtest.Change {
			id := []string{"p1", "p2"}[r.IntN(2)]
			if r.IntN(4) == 0 {
				return meshtest.Pin(id, time.Time{}, ident.Proxies{}).Gone()
			}
			var as []meshtest.Change
			seen := map[ident.Key]bool{}
			for range r.IntN(4) {
				if c := change(); c.Key().Kind != "EndpointSlice" && !seen[c.Key()] {
					as, seen[c.Key()] = append(as, c), true
				}
			}
			of := []ident.Proxies{{Labels: map[string]string{"app": "cart"}}, {Namespace: "shop", ID: "p"}, {ID: "nobody"}}[r.IntN(3)]
			return meshtest.Pin(id, time.Unix(int64(r.IntN(3)), 0), of, as...)
		}
		w, keys := world.NewWorld(), []ident.Key(nil)
		pc := index.NewPushContext(w)
		catalog := NewCatalog(pc)
		for step := range 60 {
			var changes []meshtest.Change
			for range 1 + r.IntN(3) {
				changes = append(changes, change())
			}
			if r.IntN(4) == 0 {
				changes = append(changes, pin())
			}
			var err error
			if w, keys, err = w.Apply(meshtest.Rows(changes...)); err != nil {
				t.Fatal(err)
			}
			next, inputs := pc.Next(w, keys)
			before := index.Classify(pc, pinned)
			pc = next
			made := catalog.Update(pc, inputs)
			class := index.Classify(pc, pinned)
			if class != before {
				for ty := range ident.ResourceTypes {
					catalog.Drop(before.Only(ty), ty)
				}
			}
			if class == before && class.CDS.Pin == "" {
				for _, m := range made {
					if m.Class.Pin(m.Type) != "" {
						t.Fatalf("seed %d, step %d: a class of a pin changed that selects nobody", seed, step)
					}
				}
			}
			view, _ := w.View(class.CDS.Pin)
			fresh := index.NewPushContext(view)
			want := texts(NewCatalog(fresh), index.Classify(fresh, pinned))
			if diff := cmp.Diff(want, texts(catalog, class)); diff != "" {
				t.Fatalf("seed %d, step %d: the pinned proxy, %s (-fresh +updated):\n%s", seed, step, class, diff)
			}
			base := index.Classify(pc, other)
			if base.CDS.Pin != "" {
				t.Fatalf("another proxy has the class %s", base)
			}
			if fresh := index.NewPushContext(w); step%10 == 0 {
				if diff := cmp.Diff(texts(NewCatalog(fresh), index.Classify(fresh, other)), texts(catalog, base)); diff != "" {
					t.Fatalf("seed %d, step %d: another proxy (-fresh +updated):\n%s", seed, step, diff)
				}
			}
		}
	}
}
