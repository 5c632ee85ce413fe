package xds

import (
	"maps"
	"slices"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
)

// Catalog keeps the Sets of the classes in use up to date. A change makes only
// those parts again that have read a changed input, once for all classes, and
// assembles only the resources that have pieces of them.
//
// Results are immutable and may be kept. Equal content is the same pointer in
// all classes and in all versions that are still referenced. A Catalog is for
// one goroutine at a time.
type Catalog struct {
	pc       *index.PushContext
	generate partsFunc
	dry      bool // nothing is assembled

	classes  map[classKey]*class
	lists    map[listKey]*list
	parts    map[partKey]*part
	latest   [ident.ResourceTypes]*list // a list in use, or nil
	names    map[nameKey]*name
	unnamed  []*name // may have no pieces left
	readers  map[index.Input]map[*reading]struct{}
	problems problems
	applied  map[index.PatchID]int // how many parts a patch of an EnvoyFilter matches
	pool     pool
	empty    *Set
	ids      ids
}

// Change is the effect of an Update on a class and type.
type Change struct {
	Class *index.ProxyClass // only the class of Type is set; read-only
	Type  ident.ResourceType
	Set   *Set
	// Names of the resources that came, went or changed; sorted.
	Names []string
}

type (
	classKey struct {
		t  ident.ResourceType
		of index.ProxyClass // Only(t)
	}
	class struct {
		reading
		key  classKey
		list *list
	}
	// reading holds the inputs and the problems of a part, or of the search for the
	// parts of a class.
	reading struct {
		by       any // *part or *class
		inputs   []index.Input
		problems []problem.Diagnostic
	}
)

// partsFunc is partsOf, or a test's replacement.
type partsFunc func(*index.Reader, index.ProxyClass, ident.ResourceType) []piece.Part

// NewCatalog returns a Catalog of pc that keeps no class yet.
func NewCatalog(pc *index.PushContext) *Catalog { return newCatalog(pc, partsOf) }

// NewDryCatalog returns a Catalog that makes the parts of its classes, to find
// out whether they can be made, and assembles nothing: its Sets are nil.
func NewDryCatalog(pc *index.PushContext) *Catalog {
	c := NewCatalog(pc)
	c.dry = true
	return c
}

func newCatalog(pc *index.PushContext, parts partsFunc) *Catalog {
	c := &Catalog{
		pc: pc, generate: parts, empty: &Set{},
		classes: map[classKey]*class{}, lists: map[listKey]*list{}, parts: map[partKey]*part{},
		names: map[nameKey]*name{}, readers: map[index.Input]map[*reading]struct{}{},
		problems: problems{count: map[problem.Diagnostic]int{}}, applied: map[index.PatchID]int{},
	}
	for t := range ident.ResourceTypes {
		c.pool.sets.of(typeSum{t: t}, func() *Set { return c.empty })
	}
	return c
}

// Set returns the resources of type t for a class and keeps them up to date
// until Drop.
func (c *Catalog) Set(of index.ProxyClass, t ident.ResourceType) *Set {
	k := classKey{t, of.Only(t)}
	cl := c.classes[k]
	if cl == nil {
		cl = &class{key: k}
		cl.by = cl
		c.classes[k] = cl
		e := edit{Catalog: c, stale: map[*part]struct{}{}}
		e.list(cl)
		e.done()
	}
	return cl.list.set
}

// Drop ends what Set began.
func (c *Catalog) Drop(of index.ProxyClass, t ident.ResourceType) {
	k := classKey{t, of.Only(t)}
	cl := c.classes[k]
	if cl == nil {
		return
	}
	delete(c.classes, k)
	c.reread(&cl.reading, nil, nil)
	delete(cl.list.classes, cl)
	c.abandon(cl.list)
	c.sweepNames()
}

// Update moves to pc, the successor of the PushContext before, which differs in
// the given inputs. It returns the changes in no order.
func (c *Catalog) Update(pc *index.PushContext, changed []index.Input) []Change {
	c.pc = pc
	e := edit{Catalog: c, stale: map[*part]struct{}{}}
	stale := map[*class]struct{}{}
	for _, in := range changed {
		for r := range c.readers[in] {
			switch by := r.by.(type) {
			case *part:
				e.stale[by] = struct{}{}
			case *class:
				stale[by] = struct{}{}
			}
		}
	}
	for cl := range stale {
		e.list(cl)
	}
	return e.done()
}

// Inputs returns what the parts of a resource of a class in use have read, and what the
// search for the parts of the class has read, sorted. A change of nothing else changes
// the resource.
func (c *Catalog) Inputs(of index.ProxyClass, t ident.ResourceType, resource string) (parts, search []index.Input) {
	cl := c.classes[classKey{t, of.Only(t)}]
	if cl == nil {
		return nil, nil
	}
	if n := c.names[nameKey{t, resource}]; n != nil {
		for _, p := range n.givers {
			if cl.list.has.has(p.id) {
				parts = append(parts, p.inputs...)
			}
		}
	}
	slices.SortFunc(parts, index.Input.Compare)
	return slices.Compact(parts), slices.Clone(cl.inputs)
}

// Size returns the number of parts.
func (c *Catalog) Size() int { return len(c.parts) }

// Diagnostics returns the problems of the classes in use; sorted, each once.
// The result must not be changed.
func (c *Catalog) Diagnostics() []problem.Diagnostic { return c.problems.list() }

// Applied reports whether a patch of an EnvoyFilter matches something of the classes in use.
func (c *Catalog) Applied(p index.PatchID) bool { return c.applied[p] > 0 }

// matched replaces the patches that a part applies.
func (c *Catalog) matched(p *part, now map[index.PatchID]struct{}) {
	for id := range now {
		c.applied[id]++
	}
	for id := range p.applied {
		if c.applied[id]--; c.applied[id] == 0 {
			delete(c.applied, id)
		}
	}
	p.applied = now
}

// reread replaces what r has read and found; inputs are sorted.
func (c *Catalog) reread(r *reading, inputs []index.Input, problems []problem.Diagnostic) {
	c.problems.replace(r.problems, problems)
	r.problems = problems
	if slices.Equal(r.inputs, inputs) {
		return
	}
	for _, in := range r.inputs {
		readers := c.readers[in]
		if delete(readers, r); len(readers) == 0 {
			delete(c.readers, in)
		}
	}
	r.inputs = inputs
	for _, in := range inputs {
		if c.readers[in] == nil {
			c.readers[in] = map[*reading]struct{}{}
		}
		c.readers[in][r] = struct{}{}
	}
}

// problems is a multiset of Diagnostics.
type problems struct {
	count  map[problem.Diagnostic]int
	sorted []problem.Diagnostic // nil: not made yet
}

func (p *problems) replace(before, now []problem.Diagnostic) {
	if slices.Equal(before, now) {
		return
	}
	p.sorted = nil
	for _, d := range now {
		p.count[d]++
	}
	for _, d := range before {
		if p.count[d]--; p.count[d] == 0 {
			delete(p.count, d)
		}
	}
}

func (p *problems) list() []problem.Diagnostic {
	if p.sorted == nil {
		p.sorted = slices.AppendSeq(make([]problem.Diagnostic, 0, len(p.count)), maps.Keys(p.count))
		slices.SortFunc(p.sorted, problem.Diagnostic.Compare)
	}
	return p.sorted
}
