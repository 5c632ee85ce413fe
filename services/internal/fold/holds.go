package fold

import (
	"maps"
	"slices"

	"meshlog.dev/services/internal/model"
)

// OverlayRemoved says whether an overlay of that id was removed: appending it
// again would change nothing.
func (f *Fold) OverlayRemoved(id string) bool {
	_, gone := f.gone[id]
	return gone
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
