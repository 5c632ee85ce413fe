package names

import (
	"sync/atomic"
	"weak"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/xds"
)

// List is resources that many streams send.
type List struct {
	Resources []*xds.Resource
	Memo      Memo
}

// Changes is how one Set differs from an older one.
type Changes struct {
	Resources []*xds.Resource // new and changed ones, as they are now
	Memo      Memo            // of Resources
	Old       []*xds.Resource // what each was before; nil: it is new
	Gone      []*xds.Resource // removed ones, as they were
}

type listKey struct {
	t       ident.ResourceType
	sum     xds.Sum
	partial bool
}

type changesKey struct{ old, new weak.Pointer[xds.Set] }

// List returns the list of resources of that type and Sum; make makes it if no
// stream has it. A partial list lacks the empty resources of absent names, which
// the Sum counts.
func (t *Table) List(of ident.ResourceType, sum xds.Sum, partial bool, make func() []*xds.Resource) *List {
	key := listKey{of, sum, partial}
	if l := t.lists.find(key); l != nil {
		return l
	}
	return t.lists.add(key, &List{Resources: make()})
}

// Changes returns how next differs from old.
func (t *Table) Changes(old, next *xds.Set) *Changes {
	key := changesKey{weak.Make(old), weak.Make(next)}
	if c := t.changes.find(key); c != nil {
		return c
	}
	c := new(Changes)
	xds.Compare(old, next, func(was, is *xds.Resource) {
		if is == nil {
			c.Gone = append(c.Gone, was)
			return
		}
		c.Resources = append(c.Resources, is)
		c.Old = append(c.Old, was)
	})
	return t.changes.add(key, c)
}

// Select calls each with every name of n and its resource in set, or nil.
func (n *Names) Select(set *xds.Set, each func(name string, r *xds.Resource)) {
	left := set.Resources
	for name := range n.All() {
		for len(left) > 0 && left[0].Name < name {
			left = left[1:]
		}
		if len(left) > 0 && left[0].Name == name {
			each(name, left[0])
		} else {
			each(name, nil)
		}
	}
}

// SumOf returns the Sum of a subscribed name and its resource, or nil.
func SumOf(name string, r *xds.Resource) xds.Sum {
	if r == nil {
		return xds.Absent(name)
	}
	return r.Sum
}

// Memo keeps the encoded form of a list that many streams send, for each
// protocol. The zero Memo is empty; it must not be copied.
type Memo struct {
	made [2]atomic.Value
}

// Do returns what it keeps for the protocol. The first call makes it; make
// always returns the same type.
func (m *Memo) Do(delta bool, make func() any) any {
	slot := &m.made[0]
	if delta {
		slot = &m.made[1]
	}
	if v := slot.Load(); v != nil {
		return v
	}
	v := make()
	slot.CompareAndSwap(nil, v)
	return slot.Load()
}
