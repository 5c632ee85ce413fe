package table

import (
	"hash/maphash"
	"iter"
	"maps"
	"math"
	"slices"
)

// CloneMap returns a copy of m to write to. Unlike maps.Clone, it returns an
// empty map, not nil, if m is nil.
func CloneMap[K comparable, V any](m map[K]V) map[K]V {
	if m == nil {
		return make(map[K]V)
	}
	return maps.Clone(m)
}

// Table is an immutable map; its zero value is empty. A table and the one that
// was made from it share what they have in common: it is a tree by the bits of
// the keys' hashes, and a change copies the few nodes that lead to its key.
type Table[K comparable, V any] struct {
	root *node[K, V]
	n    int
}

const (
	fanBits  = 4  // of the hash, consumed by each level
	maxLeaf  = 16 // pairs in a leaf before it becomes a fork
	hashBits = 64
)

// node is a fork (kids) or a leaf (pairs); nil is an empty leaf.
type node[K comparable, V any] struct {
	owner *byte // the edit that may write to it
	kids  []*node[K, V]
	pairs []pair[K, V]
}

type pair[K comparable, V any] struct {
	key   K
	value V
}

var (
	seed = maphash.MakeSeed()
	// hashMask never changes in a program. Tests lower it, because they find no
	// keys whose hashes collide; a hash function in every Table would cost a word
	// and an indirect call.
	hashMask = uint64(math.MaxUint64)
)

func hash[K comparable](k K) uint64 { return maphash.Comparable(seed, k) & hashMask }

// kid returns the index of the kid that leads to a key of hash h at a depth.
func kid(h uint64, depth int) int { return int(h >> (fanBits * depth) & (1<<fanBits - 1)) }

// Get returns the value of k, or the zero value.
func (t Table[K, V]) Get(k K) V {
	n, h := t.root, hash(k)
	for depth := 0; n != nil && n.kids != nil; depth++ {
		n = n.kids[kid(h, depth)]
	}
	if n != nil {
		if i := n.index(k); i >= 0 {
			return n.pairs[i].value
		}
	}
	var none V
	return none
}

func (n *node[K, V]) index(k K) int {
	return slices.IndexFunc(n.pairs, func(p pair[K, V]) bool { return p.key == k })
}

// Len returns how many keys there are.
func (t Table[K, V]) Len() int { return t.n }

// All yields all pairs, in an order without meaning.
func (t Table[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { t.root.each(yield) }
}

func (n *node[K, V]) each(yield func(K, V) bool) bool {
	if n == nil {
		return true
	}
	for _, p := range n.pairs {
		if !yield(p.key, p.value) {
			return false
		}
	}
	for _, c := range n.kids {
		if !c.each(yield) {
			return false
		}
	}
	return true
}

// Edit is a table being changed; the table that it was made from stays as it is.
// The caller takes its Table once, after the last change.
type Edit[K comparable, V any] struct {
	Table[K, V]
	token *byte // marks the nodes that only this edit has
}

// Edit returns an edit of t.
func (t Table[K, V]) Edit() *Edit[K, V] { return &Edit[K, V]{t, new(byte)} }

// own returns n if the edit may write to it, else a copy.
func (e *Edit[K, V]) own(n *node[K, V]) *node[K, V] {
	switch {
	case n == nil:
		return &node[K, V]{owner: e.token}
	case n.owner == e.token:
		return n
	}
	return &node[K, V]{e.token, slices.Clone(n.kids), slices.Clone(n.pairs)}
}

// Set sets the value of k.
func (e *Edit[K, V]) Set(k K, v V) { e.root = e.insert(e.root, 0, hash(k), k, v) }

func (e *Edit[K, V]) insert(n *node[K, V], depth int, h uint64, k K, v V) *node[K, V] {
	n = e.own(n)
	if n.kids != nil {
		i := kid(h, depth)
		n.kids[i] = e.insert(n.kids[i], depth+1, h, k, v)
		return n
	}
	if i := n.index(k); i >= 0 {
		n.pairs[i].value = v
		return n
	}
	n.pairs = append(n.pairs, pair[K, V]{k, v})
	e.n++
	if len(n.pairs) > maxLeaf && fanBits*(depth+1) < hashBits {
		e.fork(n, depth)
	}
	return n
}

// fork turns a leaf that is too large into a fork.
func (e *Edit[K, V]) fork(n *node[K, V], depth int) {
	n.kids = make([]*node[K, V], 1<<fanBits)
	for _, p := range n.pairs {
		i := kid(hash(p.key), depth)
		n.kids[i] = e.own(n.kids[i])
		n.kids[i].pairs = append(n.kids[i].pairs, p)
	}
	n.pairs = nil
}

// Keep sets the value of k if it is kept, and removes k otherwise.
func (e *Edit[K, V]) Keep(k K, v V, kept bool) {
	if kept {
		e.Set(k, v)
	} else {
		e.Remove(k)
	}
}

// Remove removes k; it does nothing if k is not there.
func (e *Edit[K, V]) Remove(k K) { e.root = e.cut(e.root, 0, hash(k), k) }

// cut returns n without k: n itself if k is not there, nil if the leaf is empty
// then.
func (e *Edit[K, V]) cut(n *node[K, V], depth int, h uint64, k K) *node[K, V] {
	if n == nil {
		return nil
	}
	if n.kids != nil {
		i := kid(h, depth)
		c := e.cut(n.kids[i], depth+1, h, k)
		if c != n.kids[i] {
			n = e.own(n)
			n.kids[i] = c
		}
		return n
	}
	i := n.index(k)
	if i < 0 {
		return n
	}
	e.n--
	if len(n.pairs) == 1 {
		return nil
	}
	n = e.own(n)
	n.pairs = slices.Delete(n.pairs, i, i+1)
	return n
}
