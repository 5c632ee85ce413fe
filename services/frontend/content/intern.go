package content

import (
	"meshlog.dev/services/internal/model"
	"meshlog.dev/services/internal/xds"
)

// internKey is a content: the type and the name say which resource it is of.
type internKey struct {
	t   model.ResourceType
	sum Sum
}

// interned holds one Resource per content. What no class has any more is
// dropped when it has become more than what some class has.
type interned struct {
	byKey map[internKey]*Resource
	live  int // after the last sweep
}

func (in *interned) intern(t model.ResourceType, r xds.Resource) *Resource {
	k := internKey{t, sumOf(r.Name, r.Hash)}
	if known := in.byKey[k]; known != nil {
		return known
	}
	resource := newResource(t, r)
	in.byKey[k] = resource
	return resource
}

// sweepAt is below what number of resources sweeping is not worth it.
const sweepAt = 1024

func (in *interned) sweep(sets map[key]*entry) {
	if len(in.byKey) < max(2*in.live, sweepAt) {
		return
	}
	byKey := make(map[internKey]*Resource, len(in.byKey)/2)
	for k, e := range sets {
		for _, r := range e.set.Resources {
			byKey[internKey{k.t, r.Sum}] = r
		}
	}
	in.byKey, in.live = byKey, len(byKey)
}
