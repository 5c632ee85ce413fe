package why

import (
	"fmt"
	"slices"
)

// difference is what a change of an input does to a resource.
type difference struct {
	fields map[string]*node // by the path that they had before; nil: they are gone
	leaves int              // that differ
}

// compare returns the fields in which two nodes differ.
func compare(was, is *node) *difference {
	d := &difference{fields: map[string]*node{}}
	d.nodes("", was, is)
	return d
}

// touches reports whether a field, or something in it or around it, differs.
func (d *difference) touches(field string) bool {
	for path := range d.fields {
		if within(path, field) || within(field, path) {
			return true
		}
	}
	return false
}

// at returns the new value of a leaf that itself differs.
func (d *difference) at(leaf string) (is *node, differs bool) {
	is, differs = d.fields[leaf]
	return is, differs && leaf != ""
}

// around returns the innermost field around a leaf that is gone; "": none is, or the whole
// resource.
func (d *difference) around(leaf string) (field string) {
	for path, n := range d.fields {
		if n == nil && path != leaf && within(leaf, path) && len(path) > len(field) {
			field = path
		}
	}
	return field
}

func (d *difference) nodes(path string, was, is *node) {
	switch {
	case was != nil && is != nil && was.hash == is.hash:
	case was == nil || is == nil:
		d.fields[path] = is
		d.leaves += max(leavesIn(was), leavesIn(is))
	case was.isList && is.isList:
		d.lists(path, was.list, is.list)
	case was.text == "" && is.text == "" && !was.isList && !is.isList:
		d.objects(path, was, is)
	default:
		d.fields[path] = is
		d.leaves += max(was.leaves, is.leaves)
	}
}

func leavesIn(n *node) int {
	if n == nil {
		return 0
	}
	return n.leaves
}

func (d *difference) objects(path string, was, is *node) {
	names := slices.Concat(was.names, is.names)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		d.nodes(join(path, name), was.field(name), is.field(name))
	}
}

// lists pairs the elements of two lists: equal ones, then those of one name, then
// the others in their order. New elements have paths that no element had before.
func (d *difference) lists(path string, was, is []*node) {
	pair := pairs(was, is)
	taken := make([]bool, len(is))
	for i, j := range pair {
		var to *node
		if j >= 0 {
			to, taken[j] = is[j], true
		}
		d.nodes(fmt.Sprintf("%s[%d]", path, i), was[i], to)
	}
	for j, n := range is {
		if !taken[j] {
			d.nodes(fmt.Sprintf("%s[+%d]", path, j), nil, n)
		}
	}
	d.order(path, pair)
}

// order notes elements that are in another order, which counts in most lists.
func (d *difference) order(path string, pair []int) {
	last := -1
	for i, j := range pair {
		if j >= 0 && j < last {
			d.fields[fmt.Sprintf("%s[%d][order]", path, i)] = nil
			d.leaves++
		}
		last = max(last, j)
	}
}

// pairs returns, for each element of a list, the index of its partner in another; -1:
// it has none.
func pairs(was, is []*node) []int {
	pair := make([]int, len(was))
	for i := range pair {
		pair[i] = -1
	}
	taken := make([]bool, len(is))
	match := func(same func(a, b *node) bool) {
		next := 0
		for i := range was {
			if pair[i] >= 0 {
				continue
			}
			for k := range is {
				if j := (next + k) % len(is); !taken[j] && same(was[i], is[j]) {
					pair[i], taken[j], next = j, true, j+1
					break
				}
			}
		}
	}
	match(func(a, b *node) bool { return a.hash == b.hash })
	match(func(a, b *node) bool { return a.name() != "" && a.name() == b.name() })
	match(func(a, b *node) bool { return true })
	return pair
}
