package model

import (
	"iter"
	"slices"
)

// table is a map of which versions share what they have in common: editing one
// copies only the buckets that change. A table that nobody edits is immutable.
type table[K comparable, V any] struct {
	buckets [][]pair[K, V]
	n       int
	hash    func(K) uint64
}

type pair[K comparable, V any] struct {
	key   K
	value V
}

// perBucket is how many entries a bucket has, on average, when a table grows.
const perBucket = 8

func newTable[K comparable, V any](hash func(K) uint64) table[K, V] {
	return table[K, V]{buckets: make([][]pair[K, V], 1), hash: hash}
}

func (t *table[K, V]) bucket(k K) int { return int(t.hash(k) % uint64(len(t.buckets))) }

func (t *table[K, V]) get(k K) V {
	for _, p := range t.buckets[t.bucket(k)] {
		if p.key == k {
			return p.value
		}
	}
	var none V
	return none
}

// all yields everything, in no order.
func (t *table[K, V]) all() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for _, b := range t.buckets {
			for _, p := range b {
				if !yield(p.key, p.value) {
					return
				}
			}
		}
	}
}

// edit is a table being changed; the one that it was made from stays as it is.
type edit[K comparable, V any] struct {
	table[K, V]
	owned map[int]bool // buckets that nobody else has; nil: not even the slice of buckets
}

func (t table[K, V]) edit() *edit[K, V] { return &edit[K, V]{table: t} }

// own makes the bucket of k one that may be written.
func (e *edit[K, V]) own(k K) int {
	if e.owned == nil {
		e.buckets, e.owned = slices.Clone(e.buckets), map[int]bool{}
	}
	i := e.bucket(k)
	if !e.owned[i] {
		e.buckets[i], e.owned[i] = slices.Clone(e.buckets[i]), true
	}
	return i
}

func (e *edit[K, V]) set(k K, v V) {
	i := e.own(k)
	for j := range e.buckets[i] {
		if e.buckets[i][j].key == k {
			e.buckets[i][j].value = v
			return
		}
	}
	e.buckets[i] = append(e.buckets[i], pair[K, V]{k, v})
	if e.n++; e.n > perBucket*len(e.buckets) {
		e.grow()
	}
}

func (e *edit[K, V]) remove(k K) {
	is := func(p pair[K, V]) bool { return p.key == k }
	if !slices.ContainsFunc(e.buckets[e.bucket(k)], is) {
		return
	}
	i := e.own(k)
	e.buckets[i] = slices.DeleteFunc(e.buckets[i], is)
	e.n--
}

// grow spreads the entries over four times the buckets, all of them new.
func (e *edit[K, V]) grow() {
	old := e.table
	e.buckets = make([][]pair[K, V], 4*len(old.buckets))
	for i := range e.buckets {
		e.owned[i] = true
	}
	for k, v := range old.all() {
		i := e.bucket(k)
		e.buckets[i] = append(e.buckets[i], pair[K, V]{k, v})
	}
}

// hashStrings is FNV-1a, with the lengths mixed in by a separator.
func hashStrings(parts ...string) uint64 {
	h := uint64(14695981039346656037)
	for _, s := range parts {
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * 1099511628211
		}
		h = (h ^ 0xff) * 1099511628211 // in no UTF-8 text
	}
	return h
}

func hashKey(k Key) uint64 { return hashStrings(k.Source, k.Instance, k.Kind, k.Namespace, k.Name) }
