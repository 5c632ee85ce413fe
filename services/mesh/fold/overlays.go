package fold

import (
	"maps"
	"slices"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/world"
)

// OverlayRemoved says whether an overlay of that id was removed: appending it
// again would change nothing.
func (f *Fold) OverlayRemoved(id string) bool {
	_, gone := f.gone[id]
	return gone
}

// Holds are the overlays by which a guard keeps what a source lost, sorted by
// id.
func (f *Fold) Holds() []world.Overlay { return f.ofKind(ident.Hold) }

// Quarantines are the overlays that keep from clients what others like them
// rejected, sorted by id.
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
