package events

import "slices"

// Kinds are the kinds of objects that a session covers: sorted, each once. The
// empty Kinds cover all kinds.
type Kinds []string

// KindsOf returns the Kinds with these names.
func KindsOf(names ...string) Kinds {
	return slices.Compact(slices.Sorted(slices.Values(names)))
}

// Cover reports whether kind is one of k.
func (k Kinds) Cover(kind string) bool {
	if len(k) == 0 {
		return true
	}
	_, ok := slices.BinarySearch(k, kind)
	return ok
}

// Equal reports whether both cover the same.
func (k Kinds) Equal(other Kinds) bool { return slices.Equal(k, other) }
