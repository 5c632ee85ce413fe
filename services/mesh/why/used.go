package why

import (
	"errors"
	"fmt"
	"slices"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds"
)

// ErrNotServed says that an object makes nothing: the one of another source is served, or none.
var ErrNotServed = errors.New("the object is not served")

// Used returns for each proxy the resources, by type, that are made from an object: their parts
// have read it, or they would differ without it. Names are sorted.
func Used(w *world.World, k ident.Key, proxies []*proxy.Proxy) ([][ident.ResourceTypes][]string, error) {
	if o := w.Served(k); o == nil {
		return nil, ErrNotServed
	}
	pc := index.NewPushContext(w)
	without, keys, err := w.Apply(world.Change{Rows: []world.RowChange{{Row: k.Row(), Key: k}}})
	if err != nil {
		return nil, fmt.Errorf("leave the object out: %w", err)
	}
	after, inputs, err := next(pc, without, keys)
	if err != nil {
		return nil, err
	}
	catalog := xds.NewCatalog(pc)
	type setOf struct {
		class index.ProxyClass
		t     ident.ResourceType
	}
	sets, names := map[setOf]*xds.Set{}, map[setOf][]string{}
	classes := make([]index.ProxyClass, len(proxies))
	for i, p := range proxies {
		classes[i] = index.Classify(pc, p)
		for t := range ident.ResourceTypes {
			of := setOf{classes[i].Only(t), t}
			sets[of], names[of] = catalog.Set(of.class, t), catalog.Readers(of.class, t, inputs)
		}
	}
	for _, c := range catalog.Update(after, inputs) {
		of := setOf{c.Class.Only(c.Type), c.Type}
		for _, n := range c.Names {
			if sets[of].Find(n) != nil {
				names[of] = append(names[of], n)
			}
		}
	}
	all := make([][ident.ResourceTypes][]string, len(proxies))
	for i := range proxies {
		for t := range ident.ResourceTypes {
			all[i][t] = slices.Compact(slices.Sorted(slices.Values(names[setOf{classes[i].Only(t), t}])))
		}
	}
	return all, nil
}
