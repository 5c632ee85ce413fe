package events

import "slices"

// Kinds are the kinds of objects that a session speaks for: sorted, each once.
// Without any it is all kinds that there are.
type Kinds []string

// KindsOf are the kinds of these names.
func KindsOf(names ...string) Kinds {
	return slices.Compact(slices.Sorted(slices.Values(names)))
}

// Cover says whether an object of this kind is one of theirs.
func (k Kinds) Cover(kind string) bool {
	if len(k) == 0 {
		return true
	}
	_, ok := slices.BinarySearch(k, kind)
	return ok
}

// Equal says whether both cover the same.
func (k Kinds) Equal(other Kinds) bool { return slices.Equal(k, other) }
