// Package names keeps once what many streams have: subscriptions, lists of
// resources to be sent, and what has changed from one version to another.
//
// However many streams subscribe to a set of names, the set is there once, and
// that two are equal is seen by their pointers. Names that come again and again
// (E28) are recognised without making strings of them. All of it is given up
// when the last stream that uses it has let go of it.
package names

import (
	"hash/maphash"
	"runtime"
	"slices"
	"sync"
	"weak"
)

// Names is a set of names. Sets of one Table are equal if their pointers are.
// Nobody writes to it. A nil Names is the empty set.
type Names struct {
	list []string // sorted, without doubles
	hash uint64   // of the names, in no order
}

// Len is how many names there are.
func (n *Names) Len() int {
	if n == nil {
		return 0
	}
	return len(n.list)
}

// List is the names, sorted; it must not be changed.
func (n *Names) List() []string {
	if n == nil {
		return nil
	}
	return n.list
}

// Has says whether name is in the set.
func (n *Names) Has(name string) bool {
	_, ok := slices.BinarySearch(n.List(), name)
	return ok
}

// Table holds what is in use. Any number of goroutines may use it.
type Table struct {
	mu     sync.Mutex
	sets   map[uint64][]weak.Pointer[Names]
	shared shared
}

// NewTable returns an empty Table.
func NewTable() *Table {
	return &Table{
		sets: map[uint64][]weak.Pointer[Names]{},
		shared: shared{
			lists:   map[listKey]weak.Pointer[List]{},
			changes: map[changesKey]weak.Pointer[Changes]{},
		},
	}
}

// Len is how many sets are in use, as far as the garbage collector knows.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, bucket := range t.sets {
		n += len(bucket)
	}
	return n
}

// Intern returns the set of the names in w. Strings are made of them only if
// no stream has that set yet.
func (t *Table) Intern(w Wire) *Names {
	if w.Len() == 0 {
		return nil
	}
	var hash uint64
	for name := range w.All() {
		hash += maphash.Bytes(seed, name)
	}
	if n := t.find(hash, func(n *Names) bool { return n.holds(w) }); n != nil {
		return n
	}
	return t.InternList(w.strings())
}

// holds says whether w is the set; if its hash is.
func (n *Names) holds(w Wire) bool {
	if w.Len() != len(n.list) {
		return false
	}
	for name := range w.All() {
		if _, ok := slices.BinarySearchFunc(n.list, name, compareBytes); !ok {
			return false
		}
	}
	return true
}

// compareBytes makes no string of b, which comparisons do not need.
func compareBytes(s string, b []byte) int {
	switch {
	case s == string(b):
		return 0
	case s < string(b):
		return -1
	}
	return 1
}

// strings are the names in w, in one piece of memory.
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

// InternList returns the set of these names. The list is the Table's from then
// on.
func (t *Table) InternList(list []string) *Names {
	slices.Sort(list)
	list = slices.Compact(list)
	if len(list) == 0 {
		return nil
	}
	var hash uint64
	for _, name := range list {
		hash += maphash.String(seed, name)
	}
	same := func(n *Names) bool { return slices.Equal(n.list, list) }
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.findLocked(hash, same); n != nil {
		return n
	}
	n := &Names{list: list, hash: hash}
	t.sets[hash] = append(t.sets[hash], weak.Make(n))
	runtime.AddCleanup(n, t.forget, hash)
	return n
}

func (t *Table) find(hash uint64, same func(*Names) bool) *Names {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.findLocked(hash, same)
}

func (t *Table) findLocked(hash uint64, same func(*Names) bool) *Names {
	for _, p := range t.sets[hash] {
		if n := p.Value(); n != nil && same(n) {
			return n
		}
	}
	return nil
}

// forget drops what is left of sets of that hash.
func (t *Table) forget(hash uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	left := slices.DeleteFunc(t.sets[hash], func(p weak.Pointer[Names]) bool { return p.Value() == nil })
	if len(left) == 0 {
		delete(t.sets, hash)
		return
	}
	t.sets[hash] = left
}

// With is n and the names in added.
func (t *Table) With(n *Names, added Wire) *Names {
	hash, more := n.sum(), 0
	for name := range added.All() {
		if !n.hasBytes(name) {
			hash += maphash.Bytes(seed, name)
			more++
		}
	}
	if more == 0 {
		return n
	}
	same := func(o *Names) bool { return o.Len() == n.Len()+more && o.includes(n) && o.includesWire(added) }
	if o := t.find(hash, same); o != nil {
		return o
	}
	return t.InternList(append(slices.Clone(n.List()), added.strings()...))
}

// Without is n less the names in removed.
func (t *Table) Without(n *Names, removed Wire) *Names {
	hash, less := n.sum(), 0
	for name := range removed.All() {
		if n.hasBytes(name) {
			hash -= maphash.Bytes(seed, name)
			less++
		}
	}
	if less == 0 {
		return n
	}
	same := func(o *Names) bool { return o.Len() == n.Len()-less && n.includes(o) && !o.hasAny(removed) }
	if o := t.find(hash, same); o != nil {
		return o
	}
	gone := removed.strings()
	slices.Sort(gone)
	return t.InternList(slices.DeleteFunc(slices.Clone(n.List()), func(name string) bool {
		_, is := slices.BinarySearch(gone, name)
		return is
	}))
}

func (n *Names) sum() uint64 {
	if n == nil {
		return 0
	}
	return n.hash
}

func (n *Names) hasBytes(name []byte) bool {
	_, ok := slices.BinarySearchFunc(n.List(), name, compareBytes)
	return ok
}

func (n *Names) includesWire(w Wire) bool {
	for name := range w.All() {
		if !n.hasBytes(name) {
			return false
		}
	}
	return true
}

func (n *Names) hasAny(w Wire) bool {
	for name := range w.All() {
		if n.hasBytes(name) {
			return true
		}
	}
	return false
}

// includes says whether every name of o is in n.
func (n *Names) includes(o *Names) bool {
	i := 0
	for _, name := range o.List() {
		for i < len(n.list) && n.list[i] < name {
			i++
		}
		if i == len(n.list) || n.list[i] != name {
			return false
		}
	}
	return true
}
