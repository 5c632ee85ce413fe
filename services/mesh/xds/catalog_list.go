package xds

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

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
		parts   []*part // the first wins
		has     bits
		set     *Set // nil: not made yet
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
	row   []*Encoded // used by collect
	dirty [ident.ResourceTypes][]dirty
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
		before  []given
		touched []touched // each name once
	}
	// touched is a name that has, or had, a piece of the part.
	touched struct {
		*name
		given *given // nil: nothing now
		more  bool   // than one piece
	}
	// change is the new resource of a name, or nil.
	change struct {
		name     string
		resource *Resource
	}
)

// list finds the parts of a class.
func (e *edit) list(cl *class) {
	parts, inputs, problems := e.partsOf(cl.key)
	e.reads(cl.inputs, inputs,
		func(r *readers) { delete(r.classes, cl) },
		func(r *readers) { r.classes[cl] = struct{}{} })
	cl.inputs = inputs
	e.problems.replace(cl.problems, problems)
	cl.problems = problems
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
	r := e.pc.Read()
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
	l := &list{key: listKey{t: t}, parts: make([]*part, 0, len(of)), classes: map[*class]struct{}{}}
	ids := make([]byte, 0, 4*len(of))
	for _, one := range of {
		p := e.part(partKey{t, client, one})
		if l.has.has(p.id) {
			continue // the first wins
		}
		l.has.add(p.id)
		l.parts = append(l.parts, p)
		ids = binary.LittleEndian.AppendUint32(ids, p.id)
	}
	l.key.ids = sha256.Sum256(ids)
	if have := e.lists[l.key]; have != nil {
		return have
	}
	for _, p := range l.parts {
		p.lists++
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

func (e *edit) make() {
	for p := range e.stale {
		if before, differs := e.Catalog.make(p); differs && !e.dry {
			e.dirty[p.key.t] = append(e.dirty[p.key.t], dirty{part: p, before: before})
		}
	}
	for t := range e.dirty {
		for i := range e.dirty[t] {
			e.dirty[t][i].touch()
		}
	}
}

// touch finds the touched names.
func (d *dirty) touch() {
	at := make(map[*name]int, len(d.pieces))
	for i := range d.pieces {
		g := &d.pieces[i]
		if j, twice := at[g.of]; twice {
			d.touched[j].more = true
			continue
		}
		at[g.of] = len(d.touched)
		d.touched = append(d.touched, touched{name: g.of, given: g})
	}
	for i := range d.before {
		n := d.before[i].of
		if _, known := at[n]; !known {
			at[n] = len(d.touched)
			d.touched = append(d.touched, touched{name: n})
		}
	}
}

// fewGivers is the number of parts for a name up to which they are looked at
// one by one. A name has one part as a rule, or thousands.
const fewGivers = 8

// alone reports whether no other part of a list gives a piece to the name, and
// d at most one.
func (d *dirty) alone(n touched, l *list) bool {
	return !n.more && len(n.givers) <= fewGivers &&
		!slices.ContainsFunc(n.givers, func(p *part) bool { return p != d.part && l.has.has(p.id) })
}

// next returns the Set of a list after some of its parts have changed, and the
// names that differ.
func (e *edit) next(l *list) (*Set, []string) {
	if len(l.classes) == 0 {
		return l.set, nil
	}
	var changes []change
	var shared map[*name]struct{}
	for i := range e.dirty[l.key.t] {
		d := &e.dirty[l.key.t][i]
		if !l.has.has(d.id) {
			continue
		}
		for _, n := range d.touched {
			switch {
			case !d.alone(n, l):
				if shared == nil {
					shared = map[*name]struct{}{}
				}
				shared[n.name] = struct{}{}
			case n.given != nil:
				changes = append(changes, change{n.text, e.alone(n.given)})
			default:
				changes = append(changes, change{n.text, nil})
			}
		}
	}
	if len(shared) > 0 {
		changes = append(changes, e.collect(l, shared, l.set)...)
	}
	return e.splice(l.key.t, l.set, changes)
}

// first makes the Set of a new list, from another list's Set if the two differ
// little.
func (e *edit) first(l *list) *Set {
	if l.base != nil {
		if names, ok := e.differing(l); ok {
			set, _ := e.splice(l.key.t, l.baseSet, e.collect(l, names, l.baseSet))
			return set
		}
	}
	set, _ := e.splice(l.key.t, e.empty, e.collect(l, nil, e.empty))
	return set
}

// differing returns the names for which a new list and its base have different
// pieces, if these are few.
func (e *edit) differing(l *list) (map[*name]struct{}, bool) {
	names := map[*name]struct{}{}
	differ := 0
	add := func(pieces []given) {
		for i := range pieces {
			names[pieces[i].of] = struct{}{}
		}
	}
	i := 0 // counts the parts of l that base has too
	for _, p := range l.base.parts {
		if !l.has.has(p.id) {
			add(p.pieces)
			differ++
			continue
		}
		for !l.base.has.has(l.parts[i].id) {
			i++
		}
		if l.parts[i] != p {
			return nil, false // their order differs
		}
		i++
	}
	for _, p := range l.parts {
		if !l.base.has.has(p.id) {
			add(p.pieces)
			differ++
		}
	}
	for _, d := range e.dirty[l.key.t] {
		if l.has.has(d.id) || l.base.has.has(d.id) {
			add(d.before)
			add(d.pieces)
			differ++
		}
	}
	return names, differ <= len(l.parts)/2
}

// collect assembles the resources of these names from the parts of a list; nil:
// of all names. A name without pieces has no resource. Before is a Set with
// much of the same content.
func (e *edit) collect(l *list, names map[*name]struct{}, before *Set) []change {
	pieces := make(map[*name]*[]*given, len(names))
	var last *name // pieces of one name are adjacent
	var of *[]*given
	for _, p := range l.parts {
		for i := range p.pieces {
			g := &p.pieces[i]
			if g.of != last {
				if names != nil {
					if _, asked := names[g.of]; !asked {
						continue
					}
				}
				if last, of = g.of, pieces[g.of]; of == nil {
					list := make([]*given, 0, len(last.givers))
					of = &list
					pieces[last] = of
				}
			}
			*of = join(*of, g, func(g *given) bool { return g.partial })
		}
	}
	changes := make([]change, 0, max(len(names), len(pieces)))
	for n := range names {
		if pieces[n] == nil {
			changes = append(changes, change{n.text, nil})
		}
	}
	for n, of := range pieces {
		if len(*of) == 1 {
			changes = append(changes, change{n.text, e.alone((*of)[0])})
			continue
		}
		e.row = e.row[:0]
		for _, g := range *of {
			e.row = append(e.row, g.Encoded)
		}
		changes = append(changes, change{n.text, e.resource(n, e.row, before.Find(n.text))})
	}
	return changes
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
	k := typeSum{t, sum}
	if have := c.pool.sets.get(k); have != nil {
		return have, names
	}
	next := &Set{Sum: sum, Resources: make([]*Resource, 0, size)}
	done := 0
	for j, ch := range kept {
		next.Resources = append(next.Resources, s.Resources[done:at[j]]...)
		if done = at[j]; done < len(s.Resources) && s.Resources[done].Name == ch.name {
			done++
		}
		if ch.resource != nil {
			next.Resources = append(next.Resources, ch.resource)
		}
	}
	next.Resources = append(next.Resources, s.Resources[done:]...)
	c.pool.sets.put(k, next)
	return next, names
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
	for _, p := range l.parts {
		if p.lists--; p.lists == 0 {
			c.dropPart(p)
		}
	}
}
