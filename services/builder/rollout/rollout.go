// Package rollout decides which overlays give changes of configuration to some proxies
// before the others, by the steps of MeshPolicy.rollout.
//
// It proposes overlays and writes nothing: the leader appends them to the log, and only
// then do they count, for every builder alike. One rollout waits at any time: the fold
// adds to it what changes. When none runs, it begins, and another one waits. So a change
// is never published before the rollout that it is in has begun.
package rollout

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/store"
)

// state are the rollouts of a fold.
type state struct {
	waiting, running *fold.Rollout // nil: there is none
	stopped          []fold.Rollout
}

func stateOf(f *fold.Fold) (s state) {
	for _, r := range f.Rollouts() {
		switch r.Rollout.State {
		case ident.RolloutWaiting:
			s.waiting = &r
		case ident.RolloutRunning:
			s.running = &r
		case ident.RolloutStopped:
			s.stopped = append(s.stopped, r)
		}
	}
	return s
}

// Plan returns the overlays that must be on the log before the next version: before is
// the content of the head, delta leads from there to the next version. None: the version
// gives no proxy a change before its step. lacks: the next version has changes that no
// rollout has, and the overlays have them.
func Plan(f *fold.Fold, steps []world.RolloutStep, before *store.Snapshot, delta store.Delta) (all []*events.Overlay, lacks bool, err error) {
	s := stateOf(f)
	if len(steps) == 0 { // the policy stages no more
		for _, r := range []*fold.Rollout{s.running, s.waiting} {
			if r != nil {
				all = append(all, remove(r, "MeshPolicy.rollout is no longer set"))
			}
		}
		return all, false, nil
	}
	l, err := lacking(f, before, delta)
	switch {
	case err != nil:
		return nil, false, err
	case s.waiting == nil:
		return waits(newID(f), l.values), l.some(), nil
	case l.some():
		return s.add(l), true, nil
	case s.running == nil && len(s.waiting.Values) > 0:
		return s.begin(f, steps), false, nil
	}
	for _, r := range s.stopped {
		if b, found := before.Get(ident.OverlayRow(r.ID)); found && len(r.Values) == 0 {
			if was, err := world.UnmarshalOverlay(r.ID, b); err != nil || len(was.Values) > 0 {
				continue // what lifts is a change of the next version, and not an end
			}
			all = append(all, remove(&r, "the sources offer other values"))
		}
	}
	return all, false, nil
}

// begin returns the overlays that begin the rollout that waits, and make another one wait.
func (s *state) begin(f *fold.Fold, steps []world.RolloutStep) []*events.Overlay {
	begun := at(s.waiting.ID, ident.RolloutRunning, 1, steps)
	begun.Reason = fmt.Sprintf("%d objects changed", len(s.waiting.Values))
	return append([]*events.Overlay{begun}, waits(newID(f), nil)...)
}

// end returns the overlay that gives the running rollout to all proxies. Plan begins the one
// that waits.
func (s *state) end() []*events.Overlay {
	return []*events.Overlay{remove(s.running, "all steps are done")}
}

// at returns the overlay that makes a rollout as far as a step, from 1.
func at(id string, is ident.RolloutState, step int, steps []world.RolloutStep) *events.Overlay {
	return &events.Overlay{ID: id, Kind: ident.Rollout, Rollout: &ident.Staging{State: is, Step: step, Reached: steps[step-1].Reached}}
}

// Stop returns the overlay that returns the proxies of a running rollout to the values
// before.
func Stop(r *fold.Rollout, reason string) *events.Overlay {
	return &events.Overlay{
		ID: r.ID, Kind: ident.Rollout, Reason: reason,
		Rollout: &ident.Staging{State: ident.RolloutStopped, Step: r.Rollout.Step},
	}
}

// remove returns the removal of a rollout that is as it was when that was decided.
func remove(r *fold.Rollout, reason string) *events.Overlay {
	return &events.Overlay{ID: r.ID, Kind: ident.Rollout, Reason: reason, Remove: true, Rollout: &ident.Staging{State: r.Rollout.State}}
}

// newID names a rollout by the position at which it was first needed.
func newID(f *fold.Fold) string {
	first := "rollout-" + f.Position().String()
	id := first
	for n := 2; f.OverlayRemoved(id) || f.HasOverlay(id); n++ {
		id = fmt.Sprintf("%s-%d", first, n)
	}
	return id
}

// maxValues is the maximum number of bytes of values in one overlay, so that it fits into
// a message.
const maxValues = 400 << 10

// add returns the overlays that add what is lacking to the rollout that waits, and correct
// the one that runs.
func (s *state) add(l *lack) (all []*events.Overlay) {
	if len(l.wrong) > 0 {
		is := s.running.Rollout
		all = with(s.running.ID, ident.Staging{State: is.State, Step: is.Step, Reached: is.Reached}, l.wrong)
	}
	if len(l.values) > 0 {
		all = append(all, waits(s.waiting.ID, l.values)...)
	}
	return all
}

// waits returns the overlays that make a rollout wait, and add values to it.
func waits(id string, values []ident.OverlayValue) []*events.Overlay {
	return with(id, ident.Staging{State: ident.RolloutWaiting}, values)
}

// with returns the overlays that add values to a rollout which is as far as it was.
func with(id string, is ident.Staging, values []ident.OverlayValue) []*events.Overlay {
	next := func() *events.Overlay {
		staging := is
		return &events.Overlay{ID: id, Kind: ident.Rollout, Rollout: &staging}
	}
	all, size := []*events.Overlay{next()}, 0
	for _, v := range values {
		n := len(v.Key.Row())
		if v.Value != nil {
			n += len(v.Value.Bytes) + len(v.Value.Type)
		}
		if size += n; size > maxValues && size > n {
			all, size = append(all, next()), n
		}
		last := all[len(all)-1]
		last.Values = append(last.Values, v)
	}
	return all
}

// lack is what no rollout has, or has wrongly.
type lack struct {
	// values of the head that the next version would replace although no rollout has begun
	// with them.
	values []ident.OverlayValue
	// wrong are the values of the head for which the running rollout has others: it began
	// after records that the leader had not read, such as the end of a rollback that no
	// version has had.
	wrong []ident.OverlayValue
}

func (l *lack) some() bool { return len(l.values)+len(l.wrong) > 0 }

// lacking compares the next version with the head. Mostly nothing lacks: the fold adds changes
// to the rollout that waits. It cannot do so before there is one, and if another build judges
// the log otherwise.
func lacking(f *fold.Fold, before *store.Snapshot, delta store.Delta) (*lack, error) {
	h, keys, err := headOf(f, before, delta)
	if err != nil {
		return nil, err
	}
	l := &lack{}
	for _, k := range slices.SortedFunc(maps.Keys(keys), world.CompareKeys) {
		if !f.Queues(k, nil) || h.released(f, k) {
			continue
		}
		wasReached, was, err := h.served(k)
		if err != nil {
			return nil, err
		}
		reached, others := f.ServedTo(k)
		may := func(v *ident.Value) bool {
			return same(v, was) || same(v, wasReached) || f.EndpointsOnly(k, was, v) || f.EndpointsOnly(k, wasReached, v)
		}
		to := &l.values
		switch {
		case !may(others) && f.HasValue(f.Running(), k) && !h.rolledBack(k):
			to = &l.wrong
		case !may(others) && !(h.rolledBack(k) && f.HasValue(f.Running(), k)): // else it is as before the rollback
		case !may(reached) && h.runs != "" && h.runs == f.Running() && h.has(h.runs, k):
			was = wasReached // those that it has reached stay on what they have
		default:
			continue
		}
		if f.Queues(k, was) {
			*to = append(*to, ident.OverlayValue{Key: k, Value: was})
		}
	}
	return l, nil
}

func same(a, b *ident.Value) bool {
	return a == b || a != nil && b != nil && a.Type == b.Type && a.Created.Equal(b.Created) && slices.Equal(a.Bytes, b.Bytes)
}

// head is what the head serves.
type head struct {
	content  *store.Snapshot
	overlays map[string]world.Overlay
	over     map[ident.Key][]word
	runs     string // the rollout that runs; empty: none
}

type word struct {
	of    *world.Overlay
	value *ident.Value
}

// headOf returns what the head serves, and the keys of which the next version may serve
// something else.
func headOf(f *fold.Fold, before *store.Snapshot, delta store.Delta) (*head, map[ident.Key]bool, error) {
	h := &head{content: before, overlays: map[string]world.Overlay{}, over: map[ident.Key][]word{}}
	keys, ids := map[ident.Key]bool{}, map[string]bool{}
	changed := slices.Clone(delta.Remove)
	for _, row := range delta.Put {
		changed = append(changed, row.Key)
	}
	for _, row := range changed {
		k, id, err := ident.ParseRow(row)
		switch {
		case err != nil: // of another build
		case id != "":
			ids[id] = true
		case f.Queues(k, nil):
			keys[k] = true
		}
	}
	if len(keys) == 0 && len(ids) == 0 {
		return h, keys, nil // the usual case: endpoints
	}
	for id := range ids {
		for _, v := range f.OverlayValues(id) {
			keys[v.Key] = true
		}
	}
	for _, id := range f.OverlayIDs() {
		ids[id] = true
	}
	for id := range ids {
		b, found := before.Get(ident.OverlayRow(id))
		if !found {
			continue
		}
		o, err := world.UnmarshalOverlay(id, b)
		if err != nil {
			return nil, nil, err
		}
		if o.Kind == ident.Pin || o.Kind == ident.Quarantine {
			continue
		}
		if o.ForSome() {
			h.runs = id
		}
		h.overlays[id] = o
		for _, v := range o.Values {
			keys[v.Key] = true
			h.over[v.Key] = append(h.over[v.Key], word{&o, v.Value})
		}
	}
	return h, keys, nil
}

// served returns the value of k that proxies are served which the running rollout has
// reached, and all others.
func (h *head) served(k ident.Key) (reached, others *ident.Value, err error) {
	first := func(words []word) (*ident.Value, error) {
		if len(words) > 0 {
			return slices.MinFunc(words, func(a, b word) int { return world.CompareOverlays(a.of, b.of) }).value, nil
		}
		b, found := h.content.Get(k.Row())
		if !found {
			return nil, nil
		}
		v, err := world.UnmarshalValue(b)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", k, err)
		}
		return &v, nil
	}
	if others, err = first(h.over[k]); err != nil {
		return nil, nil, err
	}
	reached, err = first(slices.DeleteFunc(slices.Clone(h.over[k]), func(w word) bool { return w.of.ForSome() }))
	return reached, others, err
}

func (h *head) rolledBack(k ident.Key) bool {
	return slices.ContainsFunc(h.over[k], func(w word) bool { return w.of.Kind == ident.Rollback })
}

func (h *head) has(rollout string, k ident.Key) bool {
	return slices.ContainsFunc(h.over[k], func(w word) bool { return w.of.ID == rollout })
}

// released reports whether an operator has given what was stopped to all proxies: a stopped
// rollout with k was removed.
func (h *head) released(f *fold.Fold, k ident.Key) bool {
	return slices.ContainsFunc(h.over[k], func(w word) bool {
		return w.of.Kind == ident.Rollout && w.of.Rollout.State == ident.RolloutStopped && f.OverlayRemoved(w.of.ID)
	})
}

// Progress is how far the running rollout is.
type Progress struct {
	ID               string // empty: none runs
	Step             int
	Streams, Applied uint32 // of the proxies that it has reached
	WaitsFor         string // what the next step waits for; empty: nothing
}

// WaitsForOperator is what the next step waits for after a manual one.
const WaitsForOperator = "`meshlog rollout promote`"

// Heard is what a frontend has reported last.
type Heard struct {
	Frontend string
	Serving  ident.Position
	// Rollout and Step are of the version that it serves; Streams are those of the proxies
	// that it has reached, Applied of these by version.
	Rollout string
	Step    int
	Streams uint32
	Applied map[ident.Position]uint32
}

// Next returns how far the running rollout is, and the overlays of its next step, if that
// waits for nothing. heard are the reports of all frontends; complete: every one had the
// time to report. seen is when this builder saw the step first: hold times are not longer
// because the clock of the log is ahead.
func Next(now, seen time.Time, f *fold.Fold, steps []world.RolloutStep, heard []Heard, complete bool) (p Progress, all []*events.Overlay) {
	s := stateOf(f)
	if s.running == nil {
		return p, nil
	}
	n := s.running.Rollout.Step
	p.ID, p.Step = s.running.ID, n
	if n > len(steps) { // the policy has fewer steps now
		return p, s.end()
	}
	begun, behind := ident.Position{Epoch: f.Position().Epoch, Seq: s.running.Seq}, ""
	for _, h := range heard {
		if h.Serving.Less(begun) || h.Rollout != s.running.ID || h.Step < n {
			behind = h.Frontend
			continue
		}
		p.Streams += h.Streams
		for v, streams := range h.Applied {
			if !v.Less(begun) {
				p.Applied += streams
			}
		}
	}
	step, since := steps[n-1], s.running.Rollout.Since
	if seen.Before(since) {
		since = seen
	}
	switch {
	case !complete:
		p.WaitsFor = "the reports of all frontends"
	case behind != "":
		p.WaitsFor = fmt.Sprintf("frontend %s, which does not serve the step yet", behind)
	case step.Selects && p.Streams == 0:
		p.WaitsFor = "a proxy that the step selects"
	case p.Applied*100 < uint32(step.AckPercent)*p.Streams:
		p.WaitsFor = fmt.Sprintf("%d%% of the streams to apply it: %d of %d have", step.AckPercent, p.Applied, p.Streams)
	case now.Sub(since) < step.Hold:
		p.WaitsFor = "the hold time, until " + since.Add(step.Hold).UTC().Format(time.RFC3339)
	case step.Manual:
		p.WaitsFor = WaitsForOperator
	case n == len(steps):
		return p, s.end()
	default:
		return p, []*events.Overlay{at(s.running.ID, ident.RolloutRunning, n+1, steps)}
	}
	return p, nil
}
