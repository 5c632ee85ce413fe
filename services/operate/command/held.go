package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/builder/jury"
	"meshlog.dev/services/builder/ledger"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// HeldBack returns the holds and the quarantines in a content. An answer of a
// process proves nothing: any client that may answer can call itself a builder.
func HeldBack(s *store.Snapshot) ([]*reportv1.Hold, []*reportv1.Quarantine, error) {
	overlays, err := overlaysIn(s)
	return jury.HoldsIn(overlays), jury.QuarantinesIn(overlays), err
}

// overlaysIn returns the overlays in a content, sorted by id.
func overlaysIn(s *store.Snapshot) (overlays []world.Overlay, err error) {
	for r := range s.Rows() { // sorted by key
		_, id, err := ident.ParseRow(r.Key)
		if err != nil || id == "" {
			continue
		}
		o, err := world.UnmarshalOverlay(id, r.Value)
		if err != nil {
			return nil, err
		}
		overlays = append(overlays, o)
	}
	return overlays, nil
}

// Word is a rollback, a freeze or a pin that holds.
type Word struct {
	ID     string    `json:"id"`
	Kind   string    `json:"kind"` // rollback, freeze, pin
	Actor  string    `json:"actor,omitempty"`
	Since  time.Time `json:"since,omitzero"`
	Reason string    `json:"reason,omitempty"`
	// Scope is what stays as it is; absent if the rollback names single objects.
	Scope   string `json:"scope,omitempty"`
	Objects int    `json:"objects"`           // that are rolled back, or have another value for the pinned proxies
	Proxies string `json:"proxies,omitempty"` // that are pinned
}

// End returns the command that ends the word.
func (w Word) End() string {
	if w.Kind == "pin" {
		return "meshlog unpin " + w.ID
	}
	return "meshlog release " + w.ID
}

// Words returns the rollbacks, freezes and pins in a content, sorted by id.
func Words(s *store.Snapshot) ([]Word, error) {
	overlays, err := overlaysIn(s)
	words := []Word{}
	for _, o := range overlays {
		if o.Kind != ident.Rollback && o.Kind != ident.Freeze && o.Kind != ident.Pin {
			continue
		}
		w := Word{
			ID: o.ID, Kind: past.OverlayKinds[o.Kind], Actor: o.Actor, Since: Stamp(o.Observed), Reason: o.Reason, Objects: len(o.Values),
		}
		if o.Scope != nil {
			w.Scope = o.Scope.String()
		}
		if o.Proxies != nil {
			w.Proxies = o.Proxies.String()
		}
		words = append(words, w)
	}
	return words, err
}

// String returns the word in words.
func (w Word) String() string {
	if w.Kind == "pin" {
		return fmt.Sprintf("proxies %s are pinned by %s, %s for them: %s", w.Proxies, cmp.Or(w.Actor, "an operator"), Plural(w.Objects, "object differs", "objects differ"), w.Reason)
	}
	what := w.Scope
	if what == "" {
		what = Plural(w.Objects, "object", "objects")
	}
	if w.Kind == "freeze" {
		return fmt.Sprintf("%s is frozen by %s: %s", what, cmp.Or(w.Actor, "an operator"), w.Reason)
	}
	return fmt.Sprintf("%s rolled back by %s: %s", what, cmp.Or(w.Actor, "an operator"), w.Reason)
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
