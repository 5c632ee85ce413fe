package faultsim

import (
	"fmt"
	"slices"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/watcher"
)

// source is the true state of one source: a list of operations. Each operation is
// a set of changes that belong together.
type source struct {
	s     *sim
	n     int
	truth map[ident.Key]value
	hist  map[ident.Key][]value // 0: the key was removed
	ops   [][]change

	down, partial bool
	removed       bool // the source has ended, and its watcher too

	// hidden is the unreadable kind, or empty. If named is set, a listing names the
	// readable kinds even when all kinds are readable.
	hidden string
	named  bool
	// gone holds the lengths of a key's hist at which the key's absence could be
	// observed.
	gone map[ident.Key][]int
}

// change is a key's new value; zero removes the key.
type change struct {
	key   ident.Key
	value value
}

func (c change) String() string { return fmt.Sprintf("%s=%d", short(c.key), c.value) }

func newSource(s *sim, n int) *source {
	return &source{s: s, n: n, truth: map[ident.Key]value{}, hist: map[ident.Key][]value{}, gone: map[ident.Key][]int{}}
}

// op runs a random operation at the source.
func (o *source) op() {
	if !o.removed {
		o.set(o.draw()...)
	}
}

// set makes changes that belong together.
func (o *source) set(set ...change) {
	batch := len(set) > 1
	for _, c := range set {
		o.hist[c.key] = append(o.hist[c.key], c.value)
		if c.value == 0 {
			delete(o.truth, c.key)
			batch = false
			if c.key.Kind != o.hidden {
				o.seen(c.key)
			}
		} else {
			o.truth[c.key] = c.value
		}
	}
	o.ops = append(o.ops, set)
	if batch && !o.s.noBatches {
		o.s.batches = append(o.s.batches, set)
	}
	o.s.note("source %d: %v", o.n, set)
}

func (o *source) draw() []change {
	rnd := o.s.rnd
	switch {
	case rnd.Float64() < .3: // one save of several configs
		var set []change
		for _, n := range rnd.Perm(perKind)[:2+rnd.IntN(perKind-1)] {
			set = append(set, change{keyOf(o.n, config, n), o.s.newValue(goodValue)})
		}
		return set
	case len(o.truth) > 3 && rnd.Float64() < .12: // a mass removal
		var set []change
		for _, k := range sortedKeys(o.truth)[:4] {
			set = append(set, change{key: k})
		}
		return set
	}
	k := keyOf(o.n, []string{endpoint, config}[rnd.IntN(2)], rnd.IntN(perKind))
	old := slices.DeleteFunc(slices.Clone(o.hist[k]), func(v value) bool { return v == 0 })
	switch {
	case o.truth[k] != 0 && rnd.Float64() < .25:
		return []change{{key: k}}
	case len(old) > 0 && rnd.Float64() < .4: // A, B, A
		last := old[max(0, len(old)-3):]
		return []change{{k, last[rnd.IntN(len(last))]}}
	case o.s.has("nack") && k.Kind == config && rnd.Float64() < .3:
		return []change{{k, o.s.newValue([]int{badValue, badValue, pickyValue}[rnd.IntN(3)])}}
	case o.s.has("bad") && k.Kind == config:
		return []change{{k, o.s.newValue([]int{0, 0, 0, 0, 1, 2, 3, 4}[rnd.IntN(8)])}}
	}
	return []change{{k, o.s.newValue(goodValue)}}
}

// list returns the readable objects and the number of operations that they
// include.
func (o *source) list() (l watcher.Listing, off int) {
	l.Partial, l.Kinds = o.partial, o.kinds()
	leaks := o.leaks()
	for _, k := range sortedKeys(o.truth) {
		if o.partial && k.Name >= "2" || k.Kind == o.hidden && !leaks {
			continue
		}
		l.Objects = append(l.Objects, object(change{k, o.truth[k]}))
	}
	return l, len(o.ops)
}

func object(c change) watcher.Object {
	o := watcher.Object{Kind: c.key.Kind, Namespace: c.key.Namespace, Name: c.key.Name, Delete: c.value == 0}
	if c.value != 0 {
		o.Value = c.value.payload(c.key)
	}
	return o
}

func hashOf(k ident.Key, v value) ident.Hash {
	if v == 0 {
		return ident.Hash{}
	}
	return events.ContentHash(k, v.payload(k))
}
