package store

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"iter"
	"slices"
	"strings"

	"meshlog.dev/proto/ident"
)

// Snapshot is an immutable set of rows with a Merkle root over 4096 buckets of
// keys. A change makes a new Snapshot that shares all unchanged parts; it costs
// O(rows changed), the root included. The nil *Snapshot is the empty one.
//
// Snapshots share values with their callers: neither side may write to them.
type Snapshot struct{ node[*mid] }

// mid is a node between the root and the buckets; it has at least one row.
type mid struct{ node[*bucket] }

// node is the root or a mid.
type node[C child[C]] struct {
	children [fanOut]C
	total
}

// child is a *mid or a *bucket. The empty subtree is nil; its methods accept it.
type child[C any] interface {
	comparable
	with(changes []change) C
	sum() *total
	each(yield func(Row) bool) bool
}

// total describes all rows of a subtree; it is zero for the empty one.
type total struct {
	len  int
	size int // of keys and values
	hash ident.Hash
}

var empty total

// bucket holds rows sorted by key, at least one.
type bucket struct {
	leaves []*leaf
	total
}

type leaf struct {
	key   string
	value []byte
	hash  ident.Hash
}

// change is one row of a Delta on its way to its bucket.
type change struct {
	mid, bucket int
	remove      bool
	row         Row
}

// With returns s with d applied. To remove a missing row, or to put an equal one,
// changes nothing; if d changes nothing, the result is s itself.
func (s *Snapshot) With(d Delta) *Snapshot {
	next := new(Snapshot)
	if s != nil {
		*next = *s
	}
	switch {
	case !next.apply(changesOf(d), rootTag, func(c change) int { return c.mid }):
		return s
	case next.len == 0:
		return nil
	}
	return next
}

func (m *mid) with(changes []change) *mid {
	next := new(mid)
	if m != nil {
		*next = *m
	}
	switch {
	case !next.apply(changes, midTag, func(c change) int { return c.bucket }):
		return m
	case next.len == 0:
		return nil
	}
	return next
}

// apply applies changes, sorted by the slot of the child, and reports whether they
// change anything.
func (n *node[C]) apply(changes []change, tag byte, slot func(change) int) (changed bool) {
	for of := range chunkBy(changes, func(a, b change) bool { return slot(a) == slot(b) }) {
		i := slot(of[0])
		was := n.children[i]
		is := was.with(of)
		if is == was {
			continue
		}
		changed = true
		n.len += is.sum().len - was.sum().len
		n.size += is.sum().size - was.sum().size
		n.children[i] = is
	}
	if changed {
		n.hash = n.hashOf(tag)
	}
	return changed
}

// hashOf returns the hash of a node's children; an empty child has the zero Hash.
// A node without children does not exist and has the zero Hash itself.
func (n *node[C]) hashOf(tag byte) ident.Hash {
	var b [1 + fanOut*sha256.Size]byte
	b[0] = tag
	for i := range n.children {
		copy(b[1+i*sha256.Size:], n.children[i].sum().hash[:])
	}
	return ident.HashOf(b[:])
}

// changesOf sorts the rows of d by their place in the tree.
func changesOf(d Delta) []change {
	changes := make([]change, 0, len(d.Put)+len(d.Remove))
	for _, key := range d.Remove {
		m, b := slotOf(key)
		changes = append(changes, change{m, b, true, Row{Key: key}})
	}
	for _, row := range d.Put {
		m, b := slotOf(row.Key)
		changes = append(changes, change{m, b, false, row})
	}
	slices.SortStableFunc(changes, func(a, b change) int {
		return cmp.Or(cmp.Compare(a.mid, b.mid), cmp.Compare(a.bucket, b.bucket), strings.Compare(a.row.Key, b.row.Key))
	})
	return changes
}

// chunkBy yields the runs of s whose members equal the first of the run.
func chunkBy[E any](s []E, same func(a, b E) bool) iter.Seq[[]E] {
	return func(yield func([]E) bool) {
		for len(s) > 0 {
			n := 1
			for n < len(s) && same(s[0], s[n]) {
				n++
			}
			if !yield(s[:n]) {
				return
			}
			s = s[n:]
		}
	}
}

// with merges the bucket with changes, both sorted by key.
func (b *bucket) with(changes []change) *bucket {
	var old []*leaf
	if b != nil {
		old = b.leaves
	}
	next := &bucket{leaves: make([]*leaf, 0, len(old)+len(changes))}
	changed := false
	for i, c := range changes {
		if i+1 < len(changes) && changes[i+1].row.Key == c.row.Key {
			continue // the last change of a key counts
		}
		n, found := slices.BinarySearchFunc(old, c.row.Key, compareLeaf)
		next.leaves = append(next.leaves, old[:n]...)
		old = old[n:]
		switch {
		case c.remove && found:
			old = old[1:]
			changed = true
		case c.remove:
		case found && bytes.Equal(old[0].value, c.row.Value):
			next.leaves = append(next.leaves, old[0])
			old = old[1:]
		default:
			if found {
				old = old[1:]
			}
			l := &leaf{key: c.row.Key, value: c.row.Value, hash: leafHash(c.row.Key, c.row.Value)}
			next.leaves = append(next.leaves, l)
			changed = true
		}
	}
	next.leaves = append(next.leaves, old...)
	switch {
	case !changed:
		return b
	case len(next.leaves) == 0:
		return nil
	}
	next.len = len(next.leaves)
	for _, l := range next.leaves {
		next.size += len(l.key) + len(l.value)
	}
	next.hash = bucketHash(next.leaves)
	return next
}

func compareLeaf(l *leaf, key string) int { return strings.Compare(l.key, key) }

// Get returns the value of a row.
func (s *Snapshot) Get(key string) ([]byte, bool) {
	if s == nil {
		return nil, false
	}
	i, j := slotOf(key)
	if s.children[i] == nil || s.children[i].children[j] == nil {
		return nil, false
	}
	leaves := s.children[i].children[j].leaves
	n, found := slices.BinarySearchFunc(leaves, key, compareLeaf)
	if !found {
		return nil, false
	}
	return leaves[n].value, true
}

// Len returns the number of rows.
func (s *Snapshot) Len() int {
	if s == nil {
		return 0
	}
	return s.len
}

// Root returns the Merkle root of all rows, the zero Hash for the empty snapshot.
// It does not depend on the order of changes.
func (s *Snapshot) Root() ident.Hash {
	if s == nil {
		return ident.Hash{}
	}
	return s.hash
}

// Rows yields all rows; the order is the same for equal snapshots.
func (s *Snapshot) Rows() iter.Seq[Row] {
	return func(yield func(Row) bool) {
		if s != nil {
			s.yieldAll(yield)
		}
	}
}

func (m *mid) each(yield func(Row) bool) bool { return m == nil || m.yieldAll(yield) }

// yieldAll yields the rows of all children, and reports whether yield wants more.
func (n *node[C]) yieldAll(yield func(Row) bool) bool {
	for _, c := range n.children {
		if !c.each(yield) {
			return false
		}
	}
	return true
}

func (b *bucket) each(yield func(Row) bool) bool {
	if b == nil {
		return true
	}
	for _, l := range b.leaves {
		if !yield(Row{l.key, l.value}) {
			return false
		}
	}
	return true
}

// Diff returns the delta from one snapshot to another. It costs O(difference) if
// they share structure.
func Diff(from, to *Snapshot) Delta {
	var d Delta
	var none Snapshot
	from, to = cmp.Or(from, &none), cmp.Or(to, &none)
	from.diff(&to.node, func(from, to *mid) {
		var none mid
		cmp.Or(from, &none).diff(&cmp.Or(to, &none).node, func(from, to *bucket) { diffBuckets(from, to, &d) })
	})
	slices.SortFunc(d.Put, compareRows)
	slices.Sort(d.Remove)
	return d
}

// diff calls differ for the children that differ.
func (n *node[C]) diff(to *node[C], differ func(from, to C)) {
	for i := range fanOut {
		if n.children[i] != to.children[i] && n.children[i].sum().hash != to.children[i].sum().hash {
			differ(n.children[i], to.children[i])
		}
	}
}

func diffBuckets(from, to *bucket, d *Delta) {
	var was, is []*leaf
	if from != nil {
		was = from.leaves
	}
	if to != nil {
		is = to.leaves
	}
	for len(was) > 0 || len(is) > 0 {
		switch {
		case len(is) == 0 || len(was) > 0 && was[0].key < is[0].key:
			d.Remove = append(d.Remove, was[0].key)
			was = was[1:]
		case len(was) == 0 || is[0].key < was[0].key:
			d.Put = append(d.Put, Row{is[0].key, is[0].value})
			is = is[1:]
		default:
			if was[0].hash != is[0].hash {
				d.Put = append(d.Put, Row{is[0].key, is[0].value})
			}
			was, is = was[1:], is[1:]
		}
	}
}

func (m *mid) sum() *total {
	if m == nil {
		return &empty
	}
	return &m.total
}

func (b *bucket) sum() *total {
	if b == nil {
		return &empty
	}
	return &b.total
}
