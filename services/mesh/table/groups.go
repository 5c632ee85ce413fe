package table

import (
	"slices"

	"meshlog.dev/proto/ident"
)

// groups is an immutable map of lists, none of them empty, each sorted by what
// its edits compare by. A member is told from others of its list by its key.
type Groups[G comparable, T Keyed] struct{ Table[G, []T] }

type Keyed interface{ MemberKey() ident.Key }

func NewGroups[G comparable, T Keyed](hash func(G) uint64) Groups[G, T] {
	return Groups[G, T]{New[G, []T](hash)}
}

// groupsEdit is groups being changed. Changes are collected, so that a list
// that many of them concern is made once.
type GroupsEdit[G comparable, T Keyed] struct {
	from    Groups[G, T]
	compare func(a, b T) int
	Moved   map[G]map[ident.Key]*T // nil: it goes
}

func (g Groups[G, T]) Edit(compare func(a, b T) int) *GroupsEdit[G, T] {
	return &GroupsEdit[G, T]{g, compare, make(map[G]map[ident.Key]*T)}
}

// put makes m a member in the place of the one of its key.
func (e *GroupsEdit[G, T]) Put(group G, m T) { e.move(group, m.MemberKey(), &m) }

// drop ends the membership of the one of that key.
func (e *GroupsEdit[G, T]) Drop(group G, k ident.Key) { e.move(group, k, nil) }

func (e *GroupsEdit[G, T]) move(group G, k ident.Key, m *T) {
	moved := e.Moved[group]
	if moved == nil {
		moved = make(map[ident.Key]*T)
		e.Moved[group] = moved
	}
	moved[k] = m
}

// done returns the groups as they are now. Those in e.moved may differ from
// before.
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
		if len(list) == 0 {
			lists.Remove(group)
			continue
		}
		slices.SortFunc(list, e.compare)
		lists.Set(group, list)
	}
	return Groups[G, T]{lists.Table}
}

// counter is an immutable count by name; what counts zero is not in it.
type Counter struct{ Table[string, int] }

func NewCounter() Counter {
	return Counter{New[string, int](func(s string) uint64 { return HashStrings(s) })}
}

// names is who is in it, sorted.
func (c Counter) Names() []string {
	names := make([]string, 0, c.n)
	for name := range c.All() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// counterEdit is a counter being changed.
type CounterEdit struct {
	from  Counter
	delta map[string]int
}

func (c Counter) Edit() *CounterEdit { return &CounterEdit{c, make(map[string]int)} }

func (e *CounterEdit) Add(n int, names ...string) {
	for _, name := range names {
		e.delta[name] += n
	}
}

// done returns the counter, and who came into it and who left it.
func (e *CounterEdit) Done() (c Counter, came, left []string) {
	counts := e.from.Table.Edit()
	for name, delta := range e.delta {
		was := counts.Get(name)
		is := was + delta
		switch {
		case delta == 0:
			continue
		case is == 0:
			counts.Remove(name)
			left = append(left, name)
		default:
			counts.Set(name, is)
			if was == 0 {
				came = append(came, name)
			}
		}
	}
	slices.Sort(came)
	slices.Sort(left)
	return Counter{counts.Table}, came, left
}
