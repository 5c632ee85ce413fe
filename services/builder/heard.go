package builder

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"meshlog.dev/events"
	"meshlog.dev/store"
)

// heard are the overlays and their removals on a log that is not the one that
// was read.
type heard struct {
	generation uint64
	upTo       uint64
	words      []events.Event
}

// hear reads the overlays of the log behind the last record that is known to be
// in the fold. It takes a while; an attempt that fails goes on where it was.
func (m *Machine) hear(ctx context.Context) error {
	if m.heard.generation != m.logGen {
		common, err := m.lastCommon(ctx)
		if err != nil {
			return err
		}
		m.heard = heard{generation: m.logGen, upTo: common}
	}
	bounds, err := m.cfg.Log.Bounds(ctx)
	if err != nil {
		return fmt.Errorf("bounds of the log: %w", err)
	}
	_, err = m.heardUpTo(ctx, bounds.Last)
	return err
}

// heardUpTo is what was heard up to a record, as new events. What is known
// already changes nothing when it is said again.
func (m *Machine) heardUpTo(ctx context.Context, last uint64) ([]events.Event, error) {
	for m.heard.upTo < last {
		rec, err := m.cfg.Log.Get(ctx, m.heard.upTo+1)
		if err != nil && !errors.Is(err, events.ErrNotFound) { // it may have expired meanwhile
			return nil, fmt.Errorf("record %d of the log: %w", m.heard.upTo+1, err)
		}
		m.heard.upTo++
		if o, ok := rec.Event.Body.(*events.Overlay); ok {
			// Of one id the last word counts.
			m.heard.words = slices.DeleteFunc(m.heard.words, func(e events.Event) bool { return e.Body.(*events.Overlay).ID == o.ID })
			m.heard.words = append(m.heard.words, rec.Event)
		}
	}
	// With the segment they are one append; what is older than that many words
	// of operators is in versions long since.
	again := slices.Clone(m.heard.words[max(0, len(m.heard.words)-(events.MaxBatch-1)):])
	for i := range again {
		again[i].ID = m.cfg.NewID()
	}
	return again, nil
}

// lastCommon is the newest record of the log that a version in the file is
// known to contain; the one before the log's first if there is none.
func (m *Machine) lastCommon(ctx context.Context) (uint64, error) {
	bounds, err := m.cfg.Log.Bounds(ctx)
	if err != nil {
		return 0, fmt.Errorf("bounds of the log: %w", err)
	}
	for man, err := range m.cfg.Store.Manifests(ctx) {
		if err != nil {
			return 0, fmt.Errorf("versions in the builder's store: %w", err)
		}
		seq := man.GetVersion().GetSeq()
		if seq < bounds.First || seq > bounds.Last {
			continue
		}
		rec, err := m.cfg.Log.Get(ctx, seq)
		if err != nil {
			return 0, fmt.Errorf("record %d of the log: %w", seq, err)
		}
		if want, err := store.HashFrom(man.GetRecordHash()); err == nil && rec.Hash == want {
			return seq, nil
		}
	}
	return bounds.First - 1, nil
}
