package kubeconv

import (
	"hash/maphash"
	"maps"
	"sync"
)

// Keeper makes of Pods and EndpointSlices what is worth keeping of them. What
// many of them have alike, texts and labels, is in memory once. The zero Keeper
// is ready, and safe for concurrent use.
type Keeper struct {
	mu        sync.Mutex
	seed      maphash.Seed
	texts     map[string]string // each to itself
	labelSets map[uint64]map[string]string
	portSets  map[uint64]map[string]uint32
}

// What a Keeper remembers is bounded, for it does not know which of it is still
// in use; then it begins anew, and some is in memory twice until the objects that
// have it go. Labels that no two pods share are many where jobs come and go.
const maxTexts, maxSets = 1 << 16, 1 << 12

// text is s, of equal ones always the same while it is remembered.
func (k *Keeper) text(s string) string {
	if s == "" {
		return ""
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if kept, ok := k.texts[s]; ok {
		return kept
	}
	if k.texts == nil || len(k.texts) >= maxTexts {
		k.texts = map[string]string{}
	}
	k.texts[s] = s
	return s
}

func (k *Keeper) labels(m map[string]string) map[string]string {
	return share(k, &k.labelSets, m, k.text)
}

func (k *Keeper) ports(m map[string]uint32) map[string]uint32 {
	return share(k, &k.portSets, m, func(port uint32) uint32 { return port })
}

// share is m, of equal ones always the same while it is remembered; nil if there
// is nothing in it.
func share[V comparable](k *Keeper, sets *map[uint64]map[string]V, m map[string]V, value func(V) V) map[string]V {
	if len(m) == 0 {
		return nil
	}
	k.mu.Lock()
	if k.seed == (maphash.Seed{}) {
		k.seed = maphash.MakeSeed()
	}
	var sum uint64 // of the entries, in any order
	for name, v := range m {
		sum += maphash.Comparable(k.seed, entryOf[V]{name, v})
	}
	kept, ok := (*sets)[sum]
	k.mu.Unlock()
	if ok && maps.Equal(kept, m) {
		return kept
	}
	kept = make(map[string]V, len(m))
	for name, v := range m {
		kept[k.text(name)] = value(v)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if *sets == nil || len(*sets) >= maxSets {
		*sets = map[uint64]map[string]V{}
	}
	(*sets)[sum] = kept
	return kept
}

type entryOf[V comparable] struct {
	name  string
	value V
}
