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

// Rollout is a change of configuration that has not reached all proxies.
type Rollout struct {
	ID    string `json:"id"`
	State string `json:"state"` // running, waiting, stopped
	// Step of Steps has begun; 0: none.
	Step  int `json:"step"`
	Steps int `json:"steps"`
	// Reached are the proxies that have the change.
	Reached string    `json:"reached"`
	Objects []string  `json:"objects"`
	Since   time.Time `json:"since,omitzero"` // of the step, or of the stop
	Actor   string    `json:"actor,omitempty"`
	Reason  string    `json:"reason,omitempty"`
	// Applied of the Streams that it has reached have applied the step, and WaitsFor is what
	// the next one waits for, as the leader says.
	Streams  uint32 `json:"streams"`
	Applied  uint32 `json:"applied"`
	WaitsFor string `json:"waitsFor,omitempty"`
}

// Rollouts returns the rollouts in a content that are about some object, sorted by id, with
// what the builder that leads says about the one that runs. It asks no process.
func Rollouts(s *store.Snapshot, builders []*reportv1.BuilderReport) ([]Rollout, error) {
	overlays, err := overlaysIn(s)
	all := []Rollout{}
	said := map[string]*reportv1.Rollout{}
	for _, r := range Newest(builders).GetRollouts() {
		said[r.GetId()] = r
	}
	for _, o := range overlays {
		if o.Kind != ident.Rollout || len(o.Values) == 0 {
			continue
		}
		is, by := o.Rollout, said[o.ID]
		if int(by.GetStep()) != is.Step {
			by = &reportv1.Rollout{Steps: by.GetSteps()} // it speaks of another step
		}
		r := Rollout{
			ID: o.ID, State: is.State.String(), Step: is.Step, Steps: int(by.GetSteps()), Reached: is.Reached.String(),
			Since: Stamp(is.Since), Actor: o.Actor, Reason: o.Reason, Streams: by.GetStreams(), Applied: by.GetApplied(), WaitsFor: by.GetWaitsFor(),
		}
		for _, v := range o.Values {
			r.Objects = append(r.Objects, v.Key.String())
		}
		all = append(all, r)
	}
	return all, err
}

// String returns the rollout in words.
func (r Rollout) String() string {
	objects := Plural(len(r.Objects), "object", "objects")
	switch r.State {
	case "running":
		text := fmt.Sprintf("%s of %s is at step %d of %d and has reached %s", r.ID, objects, r.Step, r.Steps, r.Reached)
		if r.WaitsFor != "" {
			text += "; it waits for " + r.WaitsFor
		}
		return text
	case "stopped":
		return fmt.Sprintf("%s of %s was stopped by %s: %s", r.ID, objects, cmp.Or(r.Actor, "a builder"), r.Reason)
	}
	return fmt.Sprintf("%s of %s waits for the one before", r.ID, objects)
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
