package xds

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
)

// Catalog keeps the Sets of the classes in use up to date. A change makes only
// those parts again that have read a changed input, once for all classes, and
// assembles only the resources that have pieces of them. It comes to the same
// Sets as Generate.
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
	readers  map[index.Input]*readers
	problems problems
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
		key      classKey
		inputs   []index.Input
		list     *list
		problems []problem.Diagnostic
	}
	// readers are the parts that have read an input.
	readers struct {
		parts   map[*part]struct{}
		classes map[*class]struct{}
	}
)

// NewCatalog returns a Catalog of pc that keeps no class yet.
func NewCatalog(pc *index.PushContext) *Catalog { return newCatalog(pc, Parts) }

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
		names: map[nameKey]*name{}, readers: map[index.Input]*readers{},
		problems: problems{count: map[problem.Diagnostic]int{}},
	}
	for t := range ident.ResourceTypes {
		c.pool.sets.put(typeSum{t: t}, c.empty)
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
	c.reads(cl.inputs, nil, func(r *readers) { delete(r.classes, cl) }, nil)
	c.problems.replace(cl.problems, nil)
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
		r := c.readers[in]
		if r == nil {
			continue
		}
		for p := range r.parts {
			e.stale[p] = struct{}{}
		}
		for cl := range r.classes {
			stale[cl] = struct{}{}
		}
	}
	for cl := range stale {
		e.list(cl)
	}
	return e.done()
}

// Size returns the number of parts.
func (c *Catalog) Size() int { return len(c.parts) }

// Diagnostics returns the problems of the classes in use; sorted, each once.
// The result must not be changed.
func (c *Catalog) Diagnostics() []problem.Diagnostic { return c.problems.list() }

// reads updates the inputs that a part has read; both lists are sorted.
func (c *Catalog) reads(before, now []index.Input, remove, add func(*readers)) {
	if slices.Equal(before, now) {
		return
	}
	for _, in := range before {
		r := c.readers[in]
		remove(r)
		if len(r.parts) == 0 && len(r.classes) == 0 {
			delete(c.readers, in)
		}
	}
	for _, in := range now {
		r := c.readers[in]
		if r == nil {
			r = &readers{parts: map[*part]struct{}{}, classes: map[*class]struct{}{}}
			c.readers[in] = r
		}
		add(r)
	}
}

// Verify returns how the kept Sets differ from those that Generate makes, and
// which parts give something else when they are made again although none of
// their inputs changed. It is slow and meant for tests.
func (c *Catalog) Verify() error {
	for k, p := range c.parts {
		again := makePart(c.pc, k)
		if !again.failed && !slices.EqualFunc(p.pieces, again.pieces, func(a given, b made) bool {
			return a.of.text == b.name && a.partial == b.partial && a.Hash == b.Hash
		}) {
			return fmt.Errorf("%s of %+v: made again, it is another", k.t, k.part)
		}
		if !slices.Equal(p.problems, again.problems) {
			return fmt.Errorf("%s of %+v: made again, it has other problems", k.t, k.part)
		}
	}
	if c.dry {
		return nil
	}
	for k, cl := range c.classes {
		want := generate(c.pc, c.generate, k.of, k.t).Set
		if d := differences(cl.list.set, want); d != "" {
			return fmt.Errorf("%s of class %+v: kept and generated differ: %s", k.t, k.of, d)
		}
	}
	return nil
}

func differences(a, b *Set) string {
	if names := Changed(a, b); len(names) > 0 {
		return strings.Join(names, ", ")
	}
	if a.Sum != b.Sum {
		return "the sum"
	}
	for i, r := range a.Resources {
		if string(r.Value()) != string(b.Resources[i].Value()) {
			return "the bytes of " + r.Name
		}
	}
	return ""
}

// Changed returns the names of the resources in which two Sets of one type
// differ; sorted.
func Changed(a, b *Set) []string {
	var names []string
	if a == b {
		return nil
	}
	x, y := a.Resources, b.Resources
	for len(x) > 0 || len(y) > 0 {
		switch {
		case len(y) == 0 || len(x) > 0 && x[0].Name < y[0].Name:
			names = append(names, x[0].Name)
			x = x[1:]
		case len(x) == 0 || x[0].Name > y[0].Name:
			names = append(names, y[0].Name)
			y = y[1:]
		default:
			if !x[0].Same(y[0]) {
				names = append(names, x[0].Name)
			}
			x, y = x[1:], y[1:]
		}
	}
	return names
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
