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
	"runtime"
	"slices"
	"sync"
	"weak"
)

// Names is a read-only set of names. Two sets of one Table are equal if their
// pointers are. A nil Names is the empty set.
type Names struct {
	list        []string // sorted, each once
	fingerprint fingerprint
}

// fingerprint identifies a set, whatever the order of its names: the sums of
// two hashes of each name, with random seeds. Two sets with equal fingerprints
// are less likely than a memory error.
type fingerprint struct {
	a, b  uint64
	count int
}

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

func (p fingerprint) add(name string) fingerprint {
	return fingerprint{p.a + maphash.String(seeds[0], name), p.b + maphash.String(seeds[1], name), p.count + 1}
}

func (p fingerprint) addBytes(name []byte) fingerprint {
	return fingerprint{p.a + maphash.Bytes(seeds[0], name), p.b + maphash.Bytes(seeds[1], name), p.count + 1}
}

func (p fingerprint) removeBytes(name []byte) fingerprint {
	return fingerprint{p.a - maphash.Bytes(seeds[0], name), p.b - maphash.Bytes(seeds[1], name), p.count - 1}
}

// Len returns the number of names.
func (n *Names) Len() int {
	if n == nil {
		return 0
	}
	return len(n.list)
}

// List returns the names, sorted; it must not be changed.
func (n *Names) List() []string {
	if n == nil {
		return nil
	}
	return n.list
}

// Has reports whether name is in the set.
func (n *Names) Has(name string) bool {
	_, ok := slices.BinarySearch(n.List(), name)
	return ok
}

func (n *Names) hasBytes(name []byte) bool {
	_, ok := slices.BinarySearchFunc(n.List(), name, compareBytes)
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
	if w.Len() == 0 {
		return nil
	}
	var p fingerprint
	for name := range w.All() {
		p = p.addBytes(name)
	}
	if n := t.sets.find(p); n != nil {
		return n
	}
	return t.InternList(w.strings())
}

// strings returns the names in w, in one piece of memory.
func (w Wire) strings() []string {
	all := string(w.raw)
	list := make([]string, 0, w.count)
	at := 0
	for name := range w.All() {
		size, _ := skip(w.raw[at+1:])
		at += 1 + size
		list = append(list, all[at-len(name):at])
	}
	return list
}

// InternList returns the set of these names. The Table owns the list from then
// on.
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
	return t.sets.add(p, &Names{list: list, fingerprint: p})
}

// With returns the union of n and added.
func (t *Table) With(n *Names, added Wire) *Names {
	p := n.fingerprinted()
	for name := range added.All() {
		if !n.hasBytes(name) {
			p = p.addBytes(name)
		}
	}
	if p == n.fingerprinted() {
		return n
	}
	if o := t.sets.find(p); o != nil {
		return o
	}
	return t.InternList(append(slices.Clone(n.List()), added.strings()...))
}

// Without returns n without the names in removed.
func (t *Table) Without(n *Names, removed Wire) *Names {
	p := n.fingerprinted()
	for name := range removed.All() {
		if n.hasBytes(name) {
			p = p.removeBytes(name)
		}
	}
	if p == n.fingerprinted() {
		return n
	}
	if o := t.sets.find(p); o != nil {
		return o
	}
	gone := removed.strings()
	slices.Sort(gone)
	return t.InternList(slices.DeleteFunc(slices.Clone(n.List()), func(name string) bool {
		_, is := slices.BinarySearch(gone, name)
		return is
	}))
}
