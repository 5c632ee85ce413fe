// Package names keeps once what many streams share: subscriptions, lists of
// resources to be sent, and the changes between two versions.
//
// A set of names exists once, however many streams subscribe to it, so equal
// sets have equal pointers. Names that a client repeats (E28) are recognised
// without making strings of them. The garbage collector frees everything when
// the last stream that uses it is gone.
package names

import (
	"hash/maphash"
	"iter"
	"runtime"
	"slices"
	"sync"
	"weak"
)

// Max is how many names of one type a stream may subscribe to (XDS-1).
const Max = 250_000

// Names is a read-only set of names. Two sets of one Table are equal if their
// pointers are. A nil Names is the empty set.
//
// A set that differs little from another one shares most of its memory with it,
// so the work of a small change does not grow with the set (XDS-8).
type Names struct {
	chunks      []chunk // none is empty; all names of one are less than those of the next
	fingerprint fingerprint
	sums        sums
}

// fingerprint identifies a set, whatever the order of its names: the sums of
// two hashes of each name, with random seeds. Two sets with equal fingerprints
// are less likely than a memory error.
type fingerprint struct {
	a, b  uint64
	count int
	size  int // bytes of the names
}

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

func (p fingerprint) add(name string) fingerprint {
	return fingerprint{p.a + maphash.String(seeds[0], name), p.b + maphash.String(seeds[1], name), p.count + 1, p.size + len(name)}
}

func (p fingerprint) addBytes(name []byte) fingerprint {
	return fingerprint{p.a + maphash.Bytes(seeds[0], name), p.b + maphash.Bytes(seeds[1], name), p.count + 1, p.size + len(name)}
}

func (p fingerprint) remove(name string) fingerprint {
	return fingerprint{p.a - maphash.String(seeds[0], name), p.b - maphash.String(seeds[1], name), p.count - 1, p.size - len(name)}
}

// Len returns the number of names.
func (n *Names) Len() int { return n.fingerprinted().count }

// Size returns the number of bytes of the names.
func (n *Names) Size() int { return n.fingerprinted().size }

// All yields the names in order.
func (n *Names) All() iter.Seq[string] {
	return func(yield func(string) bool) {
		if n == nil {
			return
		}
		for _, c := range n.chunks {
			for _, name := range c {
				if !yield(name) {
					return
				}
			}
		}
	}
}

// Has reports whether name is in the set.
func (n *Names) Has(name string) bool {
	if n == nil {
		return false
	}
	_, ok := slices.BinarySearch(n.chunks[chunkOf(n.chunks, name)], name)
	return ok
}

func (n *Names) hasBytes(name []byte) bool {
	if n == nil {
		return false
	}
	i, first := slices.BinarySearchFunc(n.chunks, name, func(c chunk, name []byte) int { return compareBytes(c[0], name) })
	if first {
		return true
	}
	_, ok := slices.BinarySearchFunc(n.chunks[max(i-1, 0)], name, compareBytes)
	return ok
}

// compareBytes makes no string of b: comparisons do not need one.
func compareBytes(s string, b []byte) int {
	switch {
	case s == string(b):
		return 0
	case s < string(b):
		return -1
	}
	return 1
}

func (n *Names) fingerprinted() fingerprint {
	if n == nil {
		return fingerprint{}
	}
	return n.fingerprint
}

// Table holds the sets, lists and changes in use. The zero Table is empty; it
// must not be copied. It is safe for concurrent use.
type Table struct {
	sets    inUse[fingerprint, Names]
	lists   inUse[listKey, List]
	changes inUse[changesKey, Changes]
}

// inUse holds values for as long as a stream uses them.
type inUse[K comparable, V any] struct {
	mu     sync.Mutex
	values map[K]weak.Pointer[V]
}

// find returns the value of a key, or nil.
func (u *inUse[K, V]) find(key K) *V {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.values[key].Value()
}

// add returns the value of a key, which is v if there was none.
func (u *inUse[K, V]) add(key K, v *V) *V {
	u.mu.Lock()
	defer u.mu.Unlock()
	if first := u.values[key].Value(); first != nil {
		return first
	}
	if u.values == nil {
		u.values = map[K]weak.Pointer[V]{}
	}
	u.values[key] = weak.Make(v)
	runtime.AddCleanup(v, u.forget, key)
	return v
}

// forget removes a value that was freed, unless it was made again.
func (u *inUse[K, V]) forget(key K) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.values[key].Value() == nil {
		delete(u.values, key)
	}
}

// Intern returns the set of the names in w. It makes strings of them only if
// the set is new.
func (t *Table) Intern(w Wire) *Names {
	var p fingerprint
	for name := range w.All() {
		p = p.addBytes(name)
	}
	if p.count == 0 {
		return nil
	}
	if n := t.sets.find(p); n != nil {
		return n
	}
	return t.InternList(w.strings())
}

// InternList returns the set of these names. It sorts the list.
func (t *Table) InternList(list []string) *Names {
	slices.Sort(list)
	list = slices.Compact(list)
	if len(list) == 0 {
		return nil
	}
	var p fingerprint
	for _, name := range list {
		p = p.add(name)
	}
	return t.sets.add(p, &Names{chunks: appendChunks(nil, list), fingerprint: p})
}

// Lacking returns the names in w that n has not, sorted.
func (n *Names) Lacking(w Wire) []string { return n.pick(w, false) }

// Having returns the names in w that n has, sorted.
func (n *Names) Having(w Wire) []string { return n.pick(w, true) }

func (n *Names) pick(w Wire, has bool) []string {
	var list []string
	for name := range w.All() {
		if n.hasBytes(name) == has {
			list = append(list, string(name))
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// With returns n with names added that it has not: sorted, each once.
func (t *Table) With(n *Names, added []string) *Names {
	p := n.fingerprinted()
	for _, name := range added {
		p = p.add(name)
	}
	return t.changed(n, p, added, mergeSorted)
}

// Without returns n without names that it has: sorted, each once.
func (t *Table) Without(n *Names, removed []string) *Names {
	p := n.fingerprinted()
	for _, name := range removed {
		p = p.remove(name)
	}
	return t.changed(n, p, removed, lessSorted)
}

// changed returns the set with fingerprint p, which is n with some sorted names
// added or removed by apply.
func (t *Table) changed(n *Names, p fingerprint, differ []string, apply func(chunk, []string) []string) *Names {
	switch {
	case len(differ) == 0:
		return n
	case p.count == 0:
		return nil
	}
	if o := t.sets.find(p); o != nil {
		return o
	}
	var chunks []chunk
	if n != nil {
		chunks = n.chunks
	}
	return t.sets.add(p, &Names{chunks: changeChunks(chunks, differ, apply), fingerprint: p})
}
