package command

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// The states of a rollout that no version has any more, beside those of ident.RolloutState.
const rolloutEnded = "ended"

// Rollout is a change of configuration that reaches the proxies step by step.
type Rollout struct {
	ID    string `json:"id"`
	State string `json:"state"` // running, waiting, stopped, ended
	// Step of Steps has begun; 0: none.
	Step  int `json:"step"`
	Steps int `json:"steps"`
	// Plan are the steps, as the MeshPolicy has them.
	Plan []RolloutStep `json:"plan,omitempty"`
	// Reached are the proxies that have the change.
	Reached string      `json:"reached"`
	Objects []string    `json:"objects,omitempty"`
	Keys    []ident.Key `json:"-"` // of Objects
	// Since is when the step began, or when the rollout was stopped or ended.
	Since  time.Time `json:"since,omitzero"`
	Actor  string    `json:"actor,omitempty"`
	Reason string    `json:"reason,omitempty"`
	// The leading builder counts: Streams are those of the proxies that the rollout has
	// reached, Applied is how many of them have acknowledged the step. WaitsFor says why the
	// next step does not begin yet.
	Streams  uint32 `json:"streams"`
	Applied  uint32 `json:"applied"`
	WaitsFor string `json:"waitsFor,omitempty"`
	// HoldUntil is when the hold time of the step that runs is over; zero: it has none.
	HoldUntil time.Time `json:"holdUntil,omitzero"`
	// Records are those that began, moved, stopped and ended it, the newest first, as far as
	// the versions that were read reach.
	Records []RolloutRecord `json:"records,omitempty"`
}

// RolloutStep is a step of the MeshPolicy, as it is printed.
type RolloutStep struct {
	Step       int    `json:"step"`
	Reached    string `json:"reached"` // by the steps so far
	AckPercent int    `json:"ackPercent"`
	Hold       string `json:"hold,omitempty"`
	Manual     bool   `json:"manual,omitempty"`
}

// RolloutRecord is a record about a rollout.
type RolloutRecord struct {
	Seq    uint64    `json:"seq"`
	Time   time.Time `json:"time"`
	What   string    `json:"what"`
	Actor  string    `json:"actor,omitempty"`
	Reason string    `json:"reason,omitempty"`
	// Version is the first one that has it.
	Version ident.Position `json:"version"`
}

// Rollouts returns the rollouts in a content that are about some object, those that run first,
// with what the builder that leads says about the one that runs. It asks no process.
func Rollouts(s *store.Snapshot, builders []*reportv1.BuilderReport) ([]Rollout, error) {
	overlays, err := overlaysIn(s)
	all := []Rollout{}
	overlays = slices.DeleteFunc(overlays, func(o world.Overlay) bool { return o.Kind != ident.Rollout || len(o.Values) == 0 })
	if err != nil || len(overlays) == 0 {
		return all, err
	}
	policy, err := policyIn(s)
	if err != nil {
		return nil, err
	}
	said := map[string]*reportv1.Rollout{}
	for _, r := range Newest(builders).GetRollouts() {
		said[r.GetId()] = r
	}
	for _, o := range overlays {
		is, by := o.Rollout, said[o.ID]
		if int(by.GetStep()) != is.Step {
			by = nil // it speaks of another step
		}
		r := Rollout{
			ID: o.ID, State: is.State.String(), Step: is.Step, Steps: len(policy.Rollout), Reached: is.Reached.String(),
			Since: Stamp(is.Since), Actor: o.Actor, Reason: o.Reason, Streams: by.GetStreams(), Applied: by.GetApplied(), WaitsFor: by.GetWaitsFor(),
		}
		if is.State != ident.RolloutStopped {
			r.plan(policy.Rollout)
		}
		for _, v := range o.Values {
			r.Keys, r.Objects = append(r.Keys, v.Key), append(r.Objects, v.Key.String())
		}
		all = append(all, r)
	}
	order := map[string]int{"running": 0, "waiting": 1}
	slices.SortStableFunc(all, func(a, b Rollout) int {
		rank := func(r Rollout) int {
			if n, ok := order[r.State]; ok {
				return n
			}
			return len(order)
		}
		return cmp.Compare(rank(a), rank(b))
	})
	return all, nil
}

// plan adds the steps, and the end of the hold time of the one that runs.
func (r *Rollout) plan(steps []world.RolloutStep) {
	for i, s := range steps {
		p := RolloutStep{Step: i + 1, Reached: s.Reached.String(), AckPercent: s.AckPercent, Manual: s.Manual}
		if s.Hold > 0 {
			p.Hold = s.Hold.String()
		}
		r.Plan = append(r.Plan, p)
	}
	if r.State == ident.RolloutRunning.String() && r.Step >= 1 && r.Step <= len(steps) && steps[r.Step-1].Hold > 0 {
		r.HoldUntil = r.Since.Add(steps[r.Step-1].Hold)
	}
}

// HoldLeft returns how long the hold time of the step still lasts, in whole seconds; 0: it is
// over, or there is none.
func (r Rollout) HoldLeft(now time.Time) time.Duration {
	if r.HoldUntil.IsZero() {
		return 0
	}
	return max(0, time.Duration(math.Ceil(r.HoldUntil.Sub(now).Seconds()))*time.Second)
}

// AckPercent is the share of the reached streams that must have applied the step that runs;
// 0: none runs.
func (r Rollout) AckPercent() int {
	if r.State != ident.RolloutRunning.String() || r.Step < 1 || r.Step > len(r.Plan) {
		return 0
	}
	return r.Plan[r.Step-1].AckPercent
}

// policyIn returns the MeshPolicy of a content, without a world of all its objects.
func policyIn(s *store.Snapshot) (world.Policy, error) {
	var rows []world.RowChange
	for r := range s.Rows() {
		k, id, err := ident.ParseRow(r.Key)
		if err != nil {
			continue // of another build
		}
		of := k.Kind == "MeshPolicy"
		if id != "" {
			o, err := world.UnmarshalOverlay(id, r.Value)
			if err != nil {
				return world.Policy{}, err
			}
			of = slices.ContainsFunc(o.Values, func(v ident.OverlayValue) bool { return v.Key.Kind == "MeshPolicy" })
		}
		if of {
			rows = append(rows, world.RowChange{Row: r.Key, Value: r.Value})
		}
	}
	w, _, err := world.NewWorld().Apply(world.Change{Rows: rows})
	if err != nil {
		return world.Policy{}, err
	}
	return w.Policy(), nil
}

// RolloutVersions is how many versions RolloutHistory reads by default.
const RolloutVersions = 2000

// RolloutHistory adds to rollouts the records about them, and returns them with the rollouts
// that have ended, the newest first. It reads the versions up to at, so many at most.
func RolloutHistory(ctx context.Context, p *past.Past, at ident.Position, now []Rollout, most int) ([]Rollout, error) {
	byID := map[string]*Rollout{}
	for i := range now {
		byID[now[i].ID] = &now[i]
	}
	var ended []*Rollout
	for m, err := range p.Versions.History(ctx) {
		if err != nil {
			return nil, err
		}
		v := store.VersionOf(m.GetVersion())
		if at.Less(v) {
			continue
		}
		if most--; most < 0 {
			break
		}
		for _, c := range m.GetChanges() {
			_, id, err := ident.ParseRow(c.GetKey())
			if err != nil || id == "" || p.Log == nil {
				continue
			}
			rec, err := p.Log.Get(ctx, c.GetSeq())
			if err != nil {
				continue // it has expired
			}
			o, ok := rec.Event.Body.(*events.Overlay)
			if !ok || o.ID != id || o.Kind != ident.Rollout || o.Rollout == nil {
				continue // an object that was added to it, or another overlay
			}
			r := byID[id]
			if r == nil && o.Remove && o.Rollout.State != ident.RolloutWaiting {
				r = &Rollout{ID: id, State: rolloutEnded, Since: rec.Time, Actor: rec.Event.Actor, Reason: o.Reason}
				byID[id], ended = r, append(ended, r)
			}
			if r != nil {
				r.add(rec, o, v)
			}
		}
	}
	for _, r := range ended {
		now = append(now, *r)
	}
	return now, nil
}

// add adds a record that is older than those before.
func (r *Rollout) add(rec events.Record, o *events.Overlay, v ident.Position) {
	what := ""
	switch is := o.Rollout; {
	case o.Remove && is.State == ident.RolloutStopped:
		what = "ended after it was stopped"
	case o.Remove:
		what = "reached all proxies"
	case is.State == ident.RolloutRunning:
		what = fmt.Sprintf("step %d began and reached %s", is.Step, is.Reached)
	case is.State == ident.RolloutStopped:
		what = fmt.Sprintf("stopped at step %d", is.Step)
	default:
		what = "began to wait"
	}
	if r.State == rolloutEnded && !o.Remove && r.Step == 0 {
		r.Step, r.Reached = o.Rollout.Step, o.Rollout.Reached.String()
	}
	r.Records = append(r.Records, RolloutRecord{rec.Seq, rec.Time, what, rec.Event.Actor, o.Reason, v})
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
	case rolloutEnded:
		return fmt.Sprintf("%s has ended: %s", r.ID, cmp.Or(r.Reason, "by "+r.Actor))
	}
	return fmt.Sprintf("%s of %s waits for the one before", r.ID, objects)
}
