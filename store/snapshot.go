package store

import (
	"bytes"
	"cmp"
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
type Snapshot struct {
	mids [fanOut]*mid
	len  int
	size int
	root ident.Hash
}

// mid is a node between the root and the buckets; it has at least one row.
type mid struct {
	buckets [fanOut]*bucket
	len     int
	size    int
	hash    ident.Hash
}

// bucket holds rows sorted by key, at least one.
type bucket struct {
	leaves []*leaf
	size   int
	hash   ident.Hash
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
	changes := changesOf(d)
	next := new(Snapshot)
	if s != nil {
		*next = *s
	}
	changed := false
	for of := range chunkBy(changes, func(a, b change) bool { return a.mid == b.mid }) {
		i := of[0].mid
		m := next.mids[i].with(of)
		if m == next.mids[i] {
			continue
		}
		changed = true
		next.len += m.rows() - next.mids[i].rows()
		next.size += m.bytes() - next.mids[i].bytes()
		next.mids[i] = m
	}
	switch {
	case !changed:
		return s
	case next.len == 0:
		return nil
	}
	next.root = nodeHash(rootTag, func(i int) ident.Hash { return next.mids[i].sum() })
	return next
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

func (m *mid) with(changes []change) *mid {
	next := new(mid)
	if m != nil {
		*next = *m
	}
	changed := false
	for of := range chunkBy(changes, func(a, b change) bool { return a.bucket == b.bucket }) {
		i := of[0].bucket
		b := next.buckets[i].with(of)
		if b == next.buckets[i] {
			continue
		}
		changed = true
		next.len += b.rows() - next.buckets[i].rows()
		next.size += b.bytes() - next.buckets[i].bytes()
		next.buckets[i] = b
	}
	switch {
	case !changed:
		return m
	case next.len == 0:
		return nil
	}
	next.hash = nodeHash(midTag, func(i int) ident.Hash { return next.buckets[i].sum() })
	return next
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
	if s.mids[i] == nil || s.mids[i].buckets[j] == nil {
		return nil, false
	}
	leaves := s.mids[i].buckets[j].leaves
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
	return s.root
}

// Rows yields all rows; the order is the same for equal snapshots.
func (s *Snapshot) Rows() iter.Seq[Row] {
	return func(yield func(Row) bool) {
		if s == nil {
			return
		}
		for _, m := range s.mids {
			if !m.each(yield) {
				return
			}
		}
	}
}

func (m *mid) each(yield func(Row) bool) bool {
	if m == nil {
		return true
	}
	for _, b := range m.buckets {
		if !b.each(yield) {
			return false
		}
	}
	return true
}

func (m *mid) all(yield func(Row) bool) { m.each(yield) }

func (b *bucket) all(yield func(Row) bool) { b.each(yield) }

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
	if from == nil {
		from = &none
	}
	if to == nil {
		to = &none
	}
	for i := range fanOut {
		if from.mids[i].sum() != to.mids[i].sum() {
			diffMids(from.mids[i], to.mids[i], &d)
		}
	}
	slices.SortFunc(d.Put, compareRows)
	slices.Sort(d.Remove)
	return d
}

func diffMids(from, to *mid, d *Delta) {
	var none mid
	if from == nil {
		from = &none
	}
	if to == nil {
		to = &none
	}
	for i := range fanOut {
		if from.buckets[i].sum() != to.buckets[i].sum() {
			diffBuckets(from.buckets[i], to.buckets[i], d)
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

// The empty subtree is nil; the methods below accept it.

func (m *mid) rows() int {
	if m == nil {
		return 0
	}
	return m.len
}

func (m *mid) bytes() int {
	if m == nil {
		return 0
	}
	return m.size
}

func (m *mid) sum() ident.Hash {
	if m == nil {
		return ident.Hash{}
	}
	return m.hash
}

func (b *bucket) rows() int {
	if b == nil {
		return 0
	}
	return len(b.leaves)
}

func (b *bucket) bytes() int {
	if b == nil {
		return 0
	}
	return b.size
}

func (b *bucket) sum() ident.Hash {
	if b == nil {
		return ident.Hash{}
	}
	return b.hash
}
