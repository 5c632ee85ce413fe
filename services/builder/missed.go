package builder

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"meshlog.dev/events"
)

// missed holds the overlays and removals that a rewound log has and that the
// fold has not read.
type missed struct {
	generation uint64
	upTo       uint64
	overlays   []events.Event
}

// owed holds missed overlays that are not acknowledged yet, because they were too
// large for one append with the segment.
type owed struct {
	epoch    uint64 // they belong to this epoch or a later one; 0: none are owed
	overlays []events.Event
}

// owes reports whether the epoch has begun for which overlays are owed. A builder pays
// whether it leads or not, because no other one may know them.
func (e *epochs) owes() bool { return e.owed.epoch > 0 && e.ledger.Position().Epoch >= e.owed.epoch }

// payOwed appends the owed overlays, which follow the segment of their epoch.
func (e *epochs) payOwed(ctx context.Context) error {
	if err := e.cfg.Log.AppendEach(ctx, e.owed.overlays); err != nil {
		return fmt.Errorf("append the overlays that the log had before: %w", err)
	}
	e.owed = owed{}
	return nil
}

// readMissed reads the overlays on the log after the last record that the fold is
// known to have. It may take long; after an error the next call continues.
func (e *epochs) readMissed(ctx context.Context) error {
	if e.missed.generation != e.gen {
		common, err := e.lastCommon(ctx)
		if err != nil {
			return err
		}
		e.missed = missed{generation: e.gen, upTo: common}
	}
	bounds, err := e.bounds(ctx)
	if err != nil {
		return err
	}
	_, err = e.missedUpTo(ctx, bounds.Last)
	return err
}

// missedUpTo returns the missed overlays up to a record, as new events. Appending
// an overlay a second time changes nothing.
func (e *epochs) missedUpTo(ctx context.Context, last uint64) ([]events.Event, error) {
	m := &e.missed
	for m.upTo < last {
		rec, err := e.get(ctx, m.upTo+1)
		if err != nil && !errors.Is(err, events.ErrNotFound) { // it may have expired meanwhile
			return nil, err
		}
		m.upTo++
		if o, ok := rec.Event.Body.(*events.Overlay); ok {
			// The last event of an id counts, or its last messages.
			m.overlays = slices.DeleteFunc(m.overlays, func(ev events.Event) bool {
				return o.Batch.Index == 0 && ev.Body.(*events.Overlay).ID == o.ID
			})
			m.overlays = append(m.overlays, rec.Event)
		}
	}
	// The newest ones that fit into one append with the segment. The earlier ones
	// have been in published versions for long.
	again := slices.Clone(m.overlays[max(0, len(m.overlays)-(events.MaxBatch-1)):])
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
