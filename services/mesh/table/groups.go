package table

import (
	"slices"

	"meshlog.dev/proto/ident"
)

// Groups is an immutable map of lists. No list is empty, and each is sorted by
// the compare function of its edits. A list has one member for each key.
type Groups[G comparable, T Keyed] struct{ Table[G, []T] }

// Keyed is a member of a list in Groups.
type Keyed interface{ MemberKey() ident.Key }

// GroupsEdit is Groups being changed. It collects changes, so that a list that
// several changes concern is made once.
type GroupsEdit[G comparable, T Keyed] struct {
	from    Groups[G, T]
	compare func(a, b T) int
	Moved   map[G]map[ident.Key]*T // nil: it goes
}

// Edit returns an edit of g that keeps lists sorted by compare.
func (g Groups[G, T]) Edit(compare func(a, b T) int) *GroupsEdit[G, T] {
	return &GroupsEdit[G, T]{g, compare, make(map[G]map[ident.Key]*T)}
}

// Put makes m a member of the group, in place of the member with its key.
func (e *GroupsEdit[G, T]) Put(group G, m T) { e.move(group, m.MemberKey(), &m) }

// Keep makes m a member of the group if it is kept, and removes the member with
// its key otherwise.
func (e *GroupsEdit[G, T]) Keep(group G, m T, kept bool) {
	if kept {
		e.Put(group, m)
	} else {
		e.Drop(group, m.MemberKey())
	}
}

// Drop removes the member with that key from the group.
func (e *GroupsEdit[G, T]) Drop(group G, k ident.Key) { e.move(group, k, nil) }

func (e *GroupsEdit[G, T]) move(group G, k ident.Key, m *T) {
	moved := e.Moved[group]
	if moved == nil {
		moved = make(map[ident.Key]*T)
		e.Moved[group] = moved
	}
	moved[k] = m
}

// Done returns the changed Groups. The lists of the groups in Moved may differ
// from before.
func (e *GroupsEdit[G, T]) Done() Groups[G, T] {
	if len(e.Moved) == 0 {
		return e.from
	}
	lists := e.from.Table.Edit()
	for group, moved := range e.Moved {
		old := lists.Get(group)
		list := make([]T, 0, len(old)+len(moved))
		for _, m := range old {
			if _, ok := moved[m.MemberKey()]; !ok {
				list = append(list, m)
			}
		}
		for _, m := range moved {
			if m != nil {
				list = append(list, *m)
			}
		}
		slices.SortFunc(list, e.compare)
		lists.Keep(group, list, len(list) > 0)
	}
	return Groups[G, T]{lists.Table}
}

// Counter is an immutable count by name, without the names that count zero.
type Counter struct{ Table[string, int] }

// Names returns the names that count, sorted.
func (c Counter) Names() []string {
	names := make([]string, 0, c.n)
	for name := range c.All() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// CounterEdit is a Counter being changed.
type CounterEdit struct {
	from  Counter
	delta map[string]int
}

// Edit returns an edit of c.
func (c Counter) Edit() *CounterEdit { return &CounterEdit{c, make(map[string]int)} }

// Add adds n to the count of each name.
func (e *CounterEdit) Add(n int, names ...string) {
	for _, name := range names {
		e.delta[name] += n
	}
}

// Done returns the changed Counter and the names that came into it or left it,
// sorted.
func (e *CounterEdit) Done() (c Counter, moved []string) {
	counts := e.from.Table.Edit()
	for name, delta := range e.delta {
		was := counts.Get(name)
		is := was + delta
		if delta == 0 {
			continue
		}
		counts.Keep(name, is, is != 0)
		if was == 0 || is == 0 {
			moved = append(moved, name)
		}
	}
	slices.Sort(moved)
	return Counter{counts.Table}, moved
}
