package builder

import (
	"fmt"
	"slices"

	"meshlog.dev/services/internal/model"
	"meshlog.dev/services/internal/xds"
)

// NewGate returns the Gate that builds the PushContext as every frontend will,
// and makes what the classes are served that count for all: what of it Envoys
// or gRPC clients would refuse, no frontend serves, and the Diagnostics say so.
// It builds on what it built before: one builder uses it.
func NewGate() Gate {
	g := new(gate)
	return g.build
}

type gate struct {
	pc      *model.PushContext // nil: nothing was built yet
	catalog *xds.Catalog
	classes map[gateClass]struct{}
}

// gateClass is a class of one type.
type gateClass struct {
	t  model.ResourceType
	of model.ProxyClass
}

// build is the Gate. What a panic leaves behind is not built on.
func (g *gate) build(w *model.World, changed []model.Key) (problems []model.Diagnostic, err error) {
	defer func() {
		if v := recover(); v != nil {
			*g = gate{}
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	switch before := g.pc; before {
	case nil:
		g.pc = model.NewPushContext(w)
		g.catalog, g.classes = xds.NewDryCatalog(g.pc), map[gateClass]struct{}{}
		g.choose()
	default:
		next, inputs := before.Next(w, changed)
		g.pc = next
		g.catalog.Update(next, inputs)
		if !next.SameClasses(before) {
			g.choose()
		}
	}
	return slices.Concat(g.pc.Diagnostics(), g.catalog.Diagnostics()), nil
}

// choose has the catalog keep the classes that count.
func (g *gate) choose() {
	classes := map[gateClass]struct{}{}
	for _, c := range g.pc.Classes() {
		for t := range model.ResourceTypes {
			classes[gateClass{t, c.Only(t)}] = struct{}{}
		}
	}
	for c := range classes {
		g.catalog.Set(c.of, c.t)
	}
	for c := range g.classes {
		if _, still := classes[c]; !still {
			g.catalog.Drop(c.of, c.t)
		}
	}
	g.classes = classes
}
