package fold

import (
	"maps"
	"slices"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/world"
)

// OverlayRemoved reports whether an overlay of that id was removed: appending it
// again has no effect.
func (f *Fold) OverlayRemoved(id string) bool {
	_, gone := f.gone[id]
	return gone
}

// Holds returns the overlays that the guard set, sorted by id. If a source loses
// many objects at once, they keep these objects in service.
func (f *Fold) Holds() []world.Overlay { return f.ofKind(ident.Hold) }

// Quarantines returns the overlays that stop serving a resource to clients of
// the software version that rejects it, sorted by id.
func (f *Fold) Quarantines() []world.Overlay { return f.ofKind(ident.Quarantine) }

func (f *Fold) ofKind(k ident.OverlayKind) []world.Overlay {
	var all []world.Overlay
	for _, id := range slices.Sorted(maps.Keys(f.overlays)) {
		if o := f.overlays[id]; o.Kind == k {
			all = append(all, o.full())
		}
	}
	return all
}
