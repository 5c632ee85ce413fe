package builder

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"meshlog.dev/events"
)

// heard holds the overlays and removals on a log that is not the one that was
// read.
type heard struct {
	generation uint64
	upTo       uint64
	overlays   []events.Event
}

// hear reads the overlays on the log after the last record that the fold is
// known to have. It may take long; an attempt that fails is continued by the
// next one.
func (e *epochs) hear(ctx context.Context) error {
	if e.heard.generation != e.gen {
		common, err := e.lastCommon(ctx)
		if err != nil {
			return err
		}
		e.heard = heard{generation: e.gen, upTo: common}
	}
	bounds, err := e.bounds(ctx)
	if err != nil {
		return err
	}
	_, err = e.heardUpTo(ctx, bounds.Last)
	return err
}

// heardUpTo returns the overlays up to a record, as new events. Appending an
// overlay again that is known already changes nothing.
func (e *epochs) heardUpTo(ctx context.Context, last uint64) ([]events.Event, error) {
	h := &e.heard
	for h.upTo < last {
		rec, err := e.get(ctx, h.upTo+1)
		if err != nil && !errors.Is(err, events.ErrNotFound) { // it may have expired meanwhile
			return nil, err
		}
		h.upTo++
		if o, ok := rec.Event.Body.(*events.Overlay); ok {
			// The last event of an id counts.
			h.overlays = slices.DeleteFunc(h.overlays, func(ev events.Event) bool { return ev.Body.(*events.Overlay).ID == o.ID })
			h.overlays = append(h.overlays, rec.Event)
		}
	}
	// They and the segment are one append. Versions have contained any earlier
	// overlay for long.
	again := slices.Clone(h.overlays[max(0, len(h.overlays)-(events.MaxBatch-1)):])
	for i := range again {
		again[i].ID = e.cfg.NewID()
	}
	return again, nil
}

// lastCommon returns the newest record of the log that a version in the file is
// known to contain; the one before the log's first if there is none.
func (e *epochs) lastCommon(ctx context.Context) (uint64, error) {
	bounds, err := e.bounds(ctx)
	if err != nil {
		return 0, err
	}
	for man, err := range e.chain.file.store.Manifests(ctx) {
		if err != nil {
			return 0, fmt.Errorf("versions in the builder's store: %w", err)
		}
		seq := man.GetVersion().GetSeq()
		if seq < bounds.First || seq > bounds.Last {
			continue
		}
		if same, err := e.holds(ctx, man); err != nil || same {
			return seq, err
		}
	}
	return bounds.First - 1, nil
}
