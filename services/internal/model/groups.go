package model

import (
	"slices"

	"meshlog.dev/proto/ident"
)

// groups is an immutable map of lists, none of them empty, each sorted by what
// its edits compare by. A member is told from others of its list by its key.
type groups[G comparable, T keyed] struct{ table[G, []T] }

type keyed interface{ key() ident.Key }

func newGroups[G comparable, T keyed](hash func(G) uint64) groups[G, T] {
	return groups[G, T]{newTable[G, []T](hash)}
}

// groupsEdit is groups being changed. Changes are collected, so that a list
// that many of them concern is made once.
type groupsEdit[G comparable, T keyed] struct {
	from    groups[G, T]
	compare func(a, b T) int
	moved   map[G]map[ident.Key]*T // nil: it goes
}

func (g groups[G, T]) edit(compare func(a, b T) int) *groupsEdit[G, T] {
	return &groupsEdit[G, T]{g, compare, make(map[G]map[ident.Key]*T)}
}

// put makes m a member in the place of the one of its key.
func (e *groupsEdit[G, T]) put(group G, m T) { e.move(group, m.key(), &m) }

// drop ends the membership of the one of that key.
func (e *groupsEdit[G, T]) drop(group G, k ident.Key) { e.move(group, k, nil) }

func (e *groupsEdit[G, T]) move(group G, k ident.Key, m *T) {
	moved := e.moved[group]
	if moved == nil {
		moved = make(map[ident.Key]*T)
		e.moved[group] = moved
	}
	moved[k] = m
}

// done returns the groups as they are now. Those in e.moved may differ from
// before.
func (e *groupsEdit[G, T]) done() groups[G, T] {
	if len(e.moved) == 0 {
		return e.from
	}
	lists := e.from.table.edit()
	for group, moved := range e.moved {
		old := lists.get(group)
		list := make([]T, 0, len(old)+len(moved))
		for _, m := range old {
			if _, ok := moved[m.key()]; !ok {
				list = append(list, m)
			}
		}
		for _, m := range moved {
			if m != nil {
				list = append(list, *m)
			}
		}
		if len(list) == 0 {
			lists.remove(group)
			continue
		}
		slices.SortFunc(list, e.compare)
		lists.set(group, list)
	}
	return groups[G, T]{lists.table}
}

// counter is an immutable count by name; what counts zero is not in it.
type counter struct{ table[string, int] }

func newCounter() counter {
	return counter{newTable[string, int](func(s string) uint64 { return hashStrings(s) })}
}

// names is who is in it, sorted.
func (c counter) names() []string {
	names := make([]string, 0, c.n)
	for name := range c.all() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// counterEdit is a counter being changed.
type counterEdit struct {
	from  counter
	delta map[string]int
}

func (c counter) edit() *counterEdit { return &counterEdit{c, make(map[string]int)} }

func (e *counterEdit) add(n int, names ...string) {
	for _, name := range names {
		e.delta[name] += n
	}
}

// done returns the counter, and who came into it and who left it.
func (e *counterEdit) done() (c counter, came, left []string) {
	counts := e.from.table.edit()
	for name, delta := range e.delta {
		was := counts.get(name)
		is := was + delta
		switch {
		case delta == 0:
			continue
		case is == 0:
			counts.remove(name)
			left = append(left, name)
		default:
			counts.set(name, is)
			if was == 0 {
				came = append(came, name)
			}
		}
	}
	slices.Sort(came)
	slices.Sort(left)
	return counter{counts.table}, came, left
}
