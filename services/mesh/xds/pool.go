package xds

import (
	"crypto/sha256"
	"sync"
	"weak"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/xds/piece"
)

// encodings finds the encoded pieces that any Catalog of this process holds. It
// can be global because its results depend on the bytes alone. As a value it would
// have to pass through the builder, the gate, the frontend and its cache, only so
// that meshlog up checks the pieces of a first version once and not twice.
var encodings encodingPool

type encodingPool struct {
	mu     sync.Mutex
	pieces weakMap[typeHash, Encoded]
}

// get returns the piece of these bytes; factsOf is called if there is none yet.
func (p *encodingPool) get(t ident.ResourceType, value []byte, factsOf func() piece.Facts) *Encoded {
	k := typeHash{t, sha256.Sum256(value)}
	p.mu.Lock()
	e := p.pieces.get(k)
	p.mu.Unlock()
	if e != nil {
		return e
	}
	e = &Encoded{Value: value, Hash: k.hash, Facts: factsOf()}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pieces.of(k, func() *Encoded { return e }) // another goroutine may have been faster
}

// pool finds content that is still referenced anywhere: equal content exists
// once, for all classes and versions in use.
type pool struct {
	blocks    weakMap[typeHash, block]
	resources weakMap[typeSum, Resource]
	sets      weakMap[typeSum, Set]
}

type (
	typeHash struct {
		t    ident.ResourceType
		hash [32]byte
	}
	typeSum struct {
		t   ident.ResourceType
		sum Sum
	}
)

// weakMap drops values that nothing else references.
type weakMap[K comparable, V any] struct {
	m     map[K]weak.Pointer[V]
	limit int // the size at which dead entries are swept
}

// minSweep keeps small maps from constant sweeping.
const minSweep = 1024

// get returns the value of k, or nil.
func (w *weakMap[K, V]) get(k K) *V { return w.m[k].Value() }

// of returns the value of k, which make makes if there is none.
func (w *weakMap[K, V]) of(k K, make func() *V) *V {
	v := w.get(k)
	if v != nil {
		return v
	}
	if w.m == nil {
		w.m, w.limit = map[K]weak.Pointer[V]{}, minSweep
	}
	if len(w.m) >= w.limit {
		for k, p := range w.m {
			if p.Value() == nil {
				delete(w.m, k)
			}
		}
		w.limit = max(minSweep, 2*len(w.m))
	}
	v = make()
	w.m[k] = weak.Make(v)
	return v
}
