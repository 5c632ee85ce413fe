package faultsim

import (
	"maps"
	"slices"

	"meshlog.dev/proto/ident"
)

// checkPins checks M7: the proxies of a pin are served the same configuration in each
// version that has the pin. That is the configuration of all other proxies, with the
// values of the pin over it.
func (s *sim) checkPins(v *version) {
	before := s.byName[v.prev]
	if before == nil {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(v.pins)) {
		if before.pins[id] == nil {
			continue
		}
		was, is := before.pinned(id), v.pinned(id)
		keys := maps.Clone(was)
		maps.Copy(keys, is)
		for _, k := range sortedKeys(keys) {
			if k.Kind == config && was[k] != is[k] {
				fail("M7", "%s pins proxies: %s was %d for them in %s and is %d in %s", id, short(k), was[k], v.prev, is[k], v.v)
			}
		}
	}
}

// pinned returns what the proxies of a pin are served.
func (v *version) pinned(id string) map[ident.Key]value {
	all := maps.Clone(v.eff)
	maps.Copy(all, v.pins[id])
	maps.DeleteFunc(all, func(_ ident.Key, x value) bool { return x == 0 })
	return all
}

// valueOfOverlay returns the value that an overlay has for a key; 0: none.
func valueOfOverlay(v ident.OverlayValue) value {
	if v.Value == nil {
		return 0
	}
	return valueFrom(v.Value.Bytes)
}
