package xds

import (
	"crypto/sha256"
	"sync"
	"weak"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/xds/piece"
)

// encodings finds the encoded pieces that any Catalog of this process holds.
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
	if first := p.pieces.get(k); first != nil {
		return first // another goroutine was faster
	}
	p.pieces.put(k, e)
	return e
}

// pool finds content that somebody still has, whoever that is: equal content
// is there once, for all classes and for as many versions as are in use.
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

// weakMap forgets what nobody else refers to.
type weakMap[K comparable, V any] struct {
	m     map[K]weak.Pointer[V]
	limit int // at which what is gone is swept out
}

// minSweep keeps small maps from being swept all the time.
const minSweep = 1024

// get returns what is known by k, or nil.
func (w *weakMap[K, V]) get(k K) *V { return w.m[k].Value() }

// put makes v known by k.
func (w *weakMap[K, V]) put(k K, v *V) {
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
	w.m[k] = weak.Make(v)
}
