package command

import (
	"context"
	"errors"
	"fmt"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/builder/jury"
	"meshlog.dev/services/builder/ledger"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/store"
)

// HeldBack returns the holds and the quarantines in a content. An answer of a
// process proves nothing: any client that may answer can call itself a builder.
func HeldBack(s *store.Snapshot) ([]*reportv1.Hold, []*reportv1.Quarantine, error) {
	var overlays []world.Overlay
	for r := range s.Rows() { // sorted by key
		_, id, err := ident.ParseRow(r.Key)
		if err != nil || id == "" {
			continue
		}
		o, err := world.UnmarshalOverlay(id, r.Value)
		if err != nil {
			return nil, nil, err
		}
		overlays = append(overlays, o)
	}
	return jury.HoldsIn(overlays), jury.QuarantinesIn(overlays), nil
}

// EpochOf returns the position of a record that was just appended to a log: its
// epoch is the newest one there.
func EpochOf(ctx context.Context, log events.Reader, seq uint64) (ident.Position, error) {
	segment, _, err := ledger.NewestEpoch(ctx, log)
	switch {
	case err != nil:
		return ident.Position{}, fmt.Errorf("epoch of record %d: %w", seq, err)
	case segment == nil:
		return ident.Position{}, errors.New("the log has no epoch: no builder has begun it")
	}
	return ident.Position{Epoch: segment.Epoch, Seq: seq}, nil
}
