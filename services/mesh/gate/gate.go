package gate

import (
	"fmt"
	"slices"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/mesh/xds/row"
)

// ClassOf is a class of proxies with regard to one resource type.
type ClassOf struct {
	Type  ident.ResourceType
	Class index.ProxyClass // Only(Type)
}

// New returns a Gate that has built nothing.
func New() *Gate { return new(Gate) }

// Gate builds the PushContext as every frontend will, and generates the resources
// of the classes that stand for all proxies. Each build continues from the one
// before. One goroutine uses a Gate.
type Gate struct {
	pc   *index.PushContext // nil: nothing was built yet
	all  *selection
	kept *selection // the classes that Keep names; nil: none

	problems []problem.Diagnostic // of pc
}

// selection is a catalog that retains the resources of some classes.
type selection struct {
	*xds.Catalog
	classes map[ClassOf]struct{}
}

// retain makes s retain the classes in now, and drop the others.
func (s *selection) retain(now map[ClassOf]struct{}) {
	for of := range now {
		s.Set(of.Class, of.Type)
	}
	for of := range s.classes {
		if _, still := now[of]; !still {
			s.Drop(of.Class, of.Type)
		}
	}
	s.classes = now
}

// Build generates the resources of a world, which differs from the world before in
// the changed keys, and returns their problems. After an error, the world
// must not be published. The next build after a panic starts from nothing.
func (g *Gate) Build(w *world.World, changed []ident.Key) (problems []problem.Diagnostic, err error) {
	defer func() {
		if v := recover(); v != nil {
			*g = Gate{}
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	before := g.pc
	if before == nil {
		g.pc = index.NewPushContext(w)
		g.all = &selection{Catalog: xds.NewDryCatalog(g.pc)}
		g.choose()
		g.problems = g.pc.Diagnostics()
	} else {
		next, inputs := before.Next(w, changed)
		g.pc = next
		g.all.Update(next, inputs)
		if g.kept != nil {
			g.kept.Update(next, inputs)
		}
		if !next.SameClasses(before) {
			g.choose()
		}
		if !next.SameProblems(before) {
			g.problems = next.Diagnostics()
		}
	}
	return slices.Concat(g.problems, g.all.Diagnostics(), g.pc.Unapplied(g.all.Applied)), nil
}

// choose makes the catalog retain the classes that stand for all proxies.
func (g *Gate) choose() {
	classes := map[ClassOf]struct{}{}
	for _, c := range g.pc.Classes() {
		for t := range ident.ResourceTypes {
			classes[ClassOf{t, c.Only(t)}] = struct{}{}
		}
	}
	g.all.retain(classes)
}

// Keep makes the gate retain the resources of these classes, of every world that it
// builds, so that Content can answer.
func (g *Gate) Keep(classes []ClassOf) {
	if len(classes) == 0 || g.pc == nil {
		g.kept = nil
		return
	}
	if g.kept == nil {
		g.kept = &selection{Catalog: xds.NewCatalog(g.pc)}
	}
	now := map[ClassOf]struct{}{}
	for _, of := range classes {
		now[of] = struct{}{}
	}
	g.kept.retain(now)
}

// Content is a resource of a class, as it is generated and as clients of one
// release are served it.
type Content struct {
	Made     []byte
	Sent     []byte // nil: nothing
	SentSum  [16]byte
	StandIns map[row.Sum]row.StandIn // for its pieces in quarantine
}

// Content returns a resource of a class, one of those that are kept, in the world
// that was built last; nil if that class has no resource of that name.
func (g *Gate) Content(of ClassOf, release, name string) *Content {
	made, sent := g.resource(of, release, name)
	if made == nil {
		return nil
	}
	c := &Content{Made: made.Value(), StandIns: xds.StandIns(name, g.pc.Replacements(of.Type, release))}
	if sent != nil {
		c.Sent, c.SentSum = sent.Value(), sent.Sum
	}
	return c
}

// Stands reports whether a resource or a piece in quarantine is still generated
// for a class, one of those that are kept, in the world that was built last.
func (g *Gate) Stands(of ClassOf, q *ident.Resource) bool {
	made, _ := g.resource(of, "", q.Name)
	switch {
	case made == nil:
		return false
	case q.Piece != "":
		return made.HasPiece(of.Type, q.Sum)
	case made.Sum == q.Sum:
		return true
	}
	// A whole resource can be rejected with stand-ins for its pieces.
	without := g.kept.WithPieces(of.Type, made, g.pc.Replacements(of.Type, q.Client))
	return without.Sum == q.Sum
}

// resource returns a resource as it is generated, and as a release is served it.
func (g *Gate) resource(of ClassOf, release, name string) (made, sent *xds.Resource) {
	if g.kept == nil {
		return nil, nil
	}
	if _, kept := g.kept.classes[of]; !kept {
		return nil, nil
	}
	made = g.kept.Set(of.Class, of.Type).Find(name)
	if made == nil {
		return nil, nil
	}
	return made, g.kept.ReplaceOne(of.Type, made, g.pc.Replacements(of.Type, release))
}

// Served returns a function that finds the bytes and the sum of a resource that a
// class is served in a world, its quarantines included: nil if there is none of
// that name.
func (g *Gate) Served(w *world.World) func(of ClassOf, name string) ([]byte, [16]byte) {
	pc := index.NewPushContext(w)
	catalog := xds.NewCatalog(pc)
	return func(of ClassOf, name string) ([]byte, [16]byte) {
		with := pc.Replacements(of.Type, of.Class.Release(of.Type))
		set, _ := catalog.Replace(of.Type, catalog.Set(of.Class, of.Type), with)
		r := set.Find(name)
		if r == nil {
			return nil, [16]byte{}
		}
		return r.Value(), r.Sum
	}
}

// Problems returns the problems of a whole content, which no builder has built: those of
// its world, and those that the first Build of a Gate finds.
func Problems(content world.Change) ([]problem.Diagnostic, error) {
	w, changed, err := world.NewWorld().Apply(content)
	if err != nil {
		return nil, err
	}
	built, err := New().Build(w, changed)
	return slices.Concat(w.Diagnostics(), built), err
}
