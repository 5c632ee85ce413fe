package xds

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
)

type (
	// listKey is the type with a hash of the parts' ids.
	listKey struct {
		t   ident.ResourceType
		ids [32]byte
	}
	// list holds the parts of a class, shared by all classes that have the same
	// parts, and the Set that they make.
	list struct {
		key     listKey
		has     bits
		parts   []*part // in order; nil if nothing is assembled
		set     *Set    // nil: not made yet
		classes map[*class]struct{}

		// Set is made from another list and its Set; nil: from nothing.
		base    *list
		baseSet *Set
	}
)

// edit is a change of a Catalog in progress: lists first, then parts, then
// Sets. At the end it drops what nothing refers to.
type edit struct {
	*Catalog
	stale map[*part]struct{} // must be made
	moved map[*class]moved
	dirty [ident.ResourceTypes][]dirty
	// changes is collect's result, which the next call overwrites.
	changes []change
}

type (
	// moved is the list of a class before the change.
	moved struct {
		list *list
		set  *Set
	}
	// dirty is a part whose pieces changed.
	dirty struct {
		*part
		before []given
	}
	nameSet map[*name]struct{}
	// change is the new resource of a name, or nil.
	change struct {
		name     string
		resource *Resource
	}
)

// list finds the parts of a class.
func (e *edit) list(cl *class) {
	parts, inputs, problems := e.partsOf(cl.key)
	e.reread(&cl.reading, inputs, problems)
	if problems != nil && cl.list != nil {
		return // the parts did not change
	}
	l := e.listOf(cl.key, parts, cl.list)
	if l == cl.list {
		return
	}
	if cl.list != nil {
		if e.moved == nil {
			e.moved = map[*class]moved{}
		}
		e.moved[cl] = moved{cl.list, cl.list.set}
		delete(cl.list.classes, cl)
	}
	l.classes[cl] = struct{}{}
	cl.list = l
}

// partsOf returns the parts of a class.
func (e *edit) partsOf(k classKey) (parts []piece.Part, inputs []index.Input, problems []problem.Diagnostic) {
	r := e.pc.ReadFor(k.of.Pin(k.t))
	defer func() {
		if v := recover(); v != nil {
			parts, inputs = nil, r.Inputs()
			problems = []problem.Diagnostic{panicked(k.t, fmt.Sprintf("class %+v", k.of), v, nil)}
		}
	}()
	return e.generate(r, k.of, k.t), r.Inputs(), nil
}

// listOf finds the list of these parts, or makes one without a Set.
func (e *edit) listOf(k classKey, of []piece.Part, base *list) *list {
	t, client := k.t, clientOf(k.of, k.t)
	large, pin := t == ident.RDS && k.of.RDS.LargeRegexes, k.of.Pin(t)
	l := &list{key: listKey{t: t}, classes: map[*class]struct{}{}}
	if !e.dry { // a dry Catalog keeps hundreds of lists, and needs no order
		l.parts = make([]*part, 0, len(of))
	}
	ids := make([]byte, 0, 4*len(of))
	for _, one := range of {
		p := e.part(partKey{t, client, large, pin, one})
		if l.has.has(p.id) {
			continue // the first wins
		}
		l.has.add(p.id)
		if !e.dry {
			l.parts = append(l.parts, p)
		}
		ids = binary.LittleEndian.AppendUint32(ids, p.id)
	}
	l.key.ids = sha256.Sum256(ids)
	if have := e.lists[l.key]; have != nil {
		return have
	}
	for id := range l.has.all {
		e.ids.parts[id].lists++
	}
	if base == nil {
		base = e.latest[t]
	}
	if base != nil {
		l.base, l.baseSet = base, base.set
	}
	e.lists[l.key] = l
	return l
}

// done makes what must be made and returns the changes.
func (e *edit) done() []Change {
	e.make()
	var changes []Change
	if !e.dry {
		changes = e.sets()
	}
	for _, was := range e.moved {
		e.abandon(was.list)
	}
	e.sweepNames()
	return changes
}

// sets assembles what changed.
func (e *edit) sets() []Change {
	var changes []Change
	for _, l := range e.lists {
		before := l.set
		if before == nil {
			l.set = e.first(l)
			l.base, l.baseSet = nil, nil
			e.latest[l.key.t] = l
			continue
		}
		var names []string
		if l.set, names = e.next(l); l.set == before {
			continue
		}
		changes = slices.Grow(changes, len(l.classes))
		for cl := range l.classes {
			if _, moved := e.moved[cl]; !moved {
				changes = append(changes, Change{&cl.key.of, cl.key.t, l.set, names})
			}
		}
	}
	for cl, was := range e.moved {
		if cl.list.set != was.set {
			changes = append(changes, Change{&cl.key.of, cl.key.t, cl.list.set, Changed(was.set, cl.list.set)})
		}
	}
	return changes
}

// make makes the parts that are stale, many of them side by side. They are taken in no
// order: what a Catalog holds does not depend on it.
func (e *edit) make() {
	if len(e.stale) < fewParts {
		for p := range e.stale {
			e.take(p, makePart(e.pc, p.key))
		}
		return
	}
	type result struct {
		*part
		output
	}
	stale, results := make(chan *part), make(chan result, fewParts)
	var makers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		makers.Go(func() {
			for p := range stale {
				results <- result{p, makePart(e.pc, p.key)}
			}
		})
	}
	go func() {
		for p := range e.stale {
			stale <- p
		}
		close(stale)
		makers.Wait()
		close(results)
	}()
	for r := range results {
		e.take(r.part, r.output)
	}
}

// fewParts are made faster than goroutines start.
const fewParts = 32

// take takes what was made of a part.
func (e *edit) take(p *part, out output) {
	if before, differs := e.Catalog.take(p, out); differs && !e.dry {
		e.dirty[p.key.t] = append(e.dirty[p.key.t], dirty{p, before})
	}
}

func (s nameSet) add(pieces []given) {
	for i := range pieces {
		s[pieces[i].of] = struct{}{}
	}
}

// next returns the Set of a list after some of its parts have changed, and the
// names that differ.
func (e *edit) next(l *list) (*Set, []string) {
	if len(l.classes) == 0 {
		return l.set, nil
	}
	names := nameSet{}
	for _, d := range e.dirty[l.key.t] {
		if l.has.has(d.id) {
			names.add(d.before)
			names.add(d.pieces)
		}
	}
	return e.splice(l.key.t, l.set, e.collect(l, names, l.set))
}

// first makes the Set of a new list, from another list's Set if the two differ
// little.
func (e *edit) first(l *list) *Set {
	base, names := l.baseSet, e.differing(l)
	if names == nil {
		base, names = e.empty, nameSet{}
		for _, p := range l.parts {
			names.add(p.pieces)
		}
	}
	set, _ := e.splice(l.key.t, base, e.collect(l, names, base))
	return set
}

// differing returns the names for which a new list and its base have different
// pieces; nil: there is no base, or the names are many.
func (e *edit) differing(l *list) nameSet {
	if l.base == nil {
		return nil
	}
	names := nameSet{}
	differ := 0
	i := 0 // counts the parts of l that base has too
	for _, p := range l.base.parts {
		if !l.has.has(p.id) {
			names.add(p.pieces)
			differ++
			continue
		}
		for !l.base.has.has(l.parts[i].id) {
			i++
		}
		if l.parts[i] != p {
			return nil // their order differs
		}
		i++
	}
	for _, p := range l.parts {
		if !l.base.has.has(p.id) {
			names.add(p.pieces)
			differ++
		}
	}
	for _, d := range e.dirty[l.key.t] {
		if l.has.has(d.id) || l.base.has.has(d.id) {
			names.add(d.before)
			names.add(d.pieces)
			differ++
		}
	}
	if differ > len(l.parts)/2 {
		return nil
	}
	return names
}

// collect assembles the resources of names from the parts of a list. A name
// without pieces has no resource. Before is a Set with much of the same content.
func (e *edit) collect(l *list, names nameSet, before *Set) []change {
	e.changes = e.changes[:0]
	several := map[*name]*collected{}
	for n := range names {
		switch g, more := n.givenIn(l); {
		case more:
			several[n] = &collected{pieces: make([]*Encoded, 0, len(n.givers))}
		case g != nil:
			e.changes = append(e.changes, change{n.text, e.alone(g)})
		default:
			e.changes = append(e.changes, change{n.text, nil})
		}
	}
	if len(several) == 0 {
		return e.changes
	}
	var last *name    // pieces of one name are adjacent
	var of *collected // its row, or nil
	for _, p := range l.parts {
		for i := range p.pieces {
			g := &p.pieces[i]
			if g.of != last {
				last, of = g.of, several[g.of]
			}
			if of != nil {
				of.add(g.Encoded, g.partial)
			}
		}
	}
	for n, of := range several {
		e.changes = append(e.changes, change{n.text, e.resource(n.nameKey, of.pieces, before.Find(n.text))})
	}
	return e.changes
}

// splice returns a Set in which some names have other resources, and the names
// that differ. A name may come twice with the same change.
func (c *Catalog) splice(t ident.ResourceType, s *Set, changes []change) (*Set, []string) {
	slices.SortFunc(changes, func(a, b change) int { return strings.Compare(a.name, b.name) })
	changes = slices.CompactFunc(changes, func(a, b change) bool { return a.name == b.name })
	at := make([]int, 0, len(changes)) // indexes in s
	names := make([]string, 0, len(changes))
	sum, size := s.Sum, len(s.Resources)
	kept := changes[:0]
	for _, ch := range changes {
		i, ok := Search(s.Resources, ch.name)
		var was *Resource
		if ok {
			was = s.Resources[i]
			size--
		}
		if ch.resource != nil {
			size++
		}
		if was.Same(ch.resource) {
			continue
		}
		if was != nil {
			sum = sum.Add(was.Sum)
		}
		if ch.resource != nil {
			sum = sum.Add(ch.resource.Sum)
		}
		at, names, kept = append(at, i), append(names, ch.name), append(kept, ch)
	}
	if len(kept) == 0 {
		return s, nil
	}
	return c.pool.sets.of(typeSum{t, sum}, func() *Set {
		next := make([]*Resource, 0, size)
		done := 0
		for j, ch := range kept {
			next = append(next, s.Resources[done:at[j]]...)
			if done = at[j]; done < len(s.Resources) && s.Resources[done].Name == ch.name {
				done++
			}
			if ch.resource != nil {
				next = append(next, ch.resource)
			}
		}
		return &Set{Sum: sum, Resources: append(next, s.Resources[done:]...)}
	}), names
}

// abandon drops a list that no class has any more.
func (c *Catalog) abandon(l *list) {
	if len(l.classes) > 0 || c.lists[l.key] != l {
		return
	}
	delete(c.lists, l.key)
	if c.latest[l.key.t] == l {
		c.latest[l.key.t] = nil
	}
	for id := range l.has.all {
		if p := c.ids.parts[id]; p.lists == 1 {
			c.dropPart(p)
		} else {
			p.lists--
		}
	}
}
