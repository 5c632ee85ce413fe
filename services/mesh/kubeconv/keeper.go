package kubeconv

import (
	"hash/maphash"
	"maps"
	"sync"
)

// Keeper extracts the needed parts of Pods and EndpointSlices. Equal strings, label
// sets and port sets share memory. The zero Keeper is ready to use; a Keeper is
// safe for concurrent use.
type Keeper struct {
	mu        sync.Mutex
	seed      maphash.Seed
	texts     map[string]string // each to itself
	labelSets map[uint64]map[string]string
	portSets  map[uint64]map[string]uint32
}

// Limits of a Keeper's tables. The Keeper does not know which entries are still in
// use, so a full table is cleared; some values are then in memory twice until their
// objects go. Clusters with many jobs have many labels that only one pod has.
const maxTexts, maxSets = 1 << 16, 1 << 12

// text returns s, or the equal string in the table.
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

// share returns m, or the equal map in the table, or nil if m is empty.
func share[V comparable](k *Keeper, sets *map[uint64]map[string]V, m map[string]V, value func(V) V) map[string]V {
	if len(m) == 0 {
		return nil
	}
	k.mu.Lock()
	if k.seed == (maphash.Seed{}) {
		k.seed = maphash.MakeSeed()
	}
	var sum uint64 // independent of the order of the entries
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
