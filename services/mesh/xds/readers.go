package xds

import (
	"maps"
	"slices"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
)

// Readers returns the names of the resources of a class in use whose parts have read one of
// some inputs, sorted: it is what Inputs notes, the other way round.
func (c *Catalog) Readers(of index.ProxyClass, t ident.ResourceType, inputs []index.Input) []string {
	cl := c.classes[classKey{t, of.Only(t)}]
	if cl == nil {
		return nil
	}
	names := map[string]struct{}{}
	for _, in := range inputs {
		for r := range c.readers[in] {
			p, ok := r.by.(*part)
			if !ok || !cl.list.has.has(p.id) {
				continue
			}
			for _, g := range p.pieces {
				names[g.of.text] = struct{}{}
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}
