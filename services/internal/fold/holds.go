package fold

import (
	"maps"
	"slices"

	"meshlog.dev/services/internal/model"
)

// OverlayUsed says whether an overlay of that id lies over something, or was
// removed: appending it again would change nothing.
func (f *Fold) OverlayUsed(id string) bool {
	_, gone := f.gone[id]
	_, lies := f.overlays[id]
	return gone || lies
}

// Holds are the overlays by which a guard keeps what a source lost, sorted by
// id.
func (f *Fold) Holds() []model.Overlay {
	var holds []model.Overlay
	for _, id := range slices.Sorted(maps.Keys(f.overlays)) {
		if o := f.overlays[id].full(); o.Kind == model.Hold {
			holds = append(holds, o)
		}
	}
	return holds
}
