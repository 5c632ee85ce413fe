package fold

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
)

// rollout applies a record about a rollout: it makes one, adds values to it, or changes how
// far it is.
func (s *step) rollout(e events.Event, o *events.Overlay) {
	if !o.OfBuilder() {
		s.dropActs() // any other word of an operator ends the wait for the rest of one
	}
	s.rolling = true
	old := s.rollouts[o.ID]
	switch {
	case o.Remove && old == nil:
		return // it is gone
	case o.Remove && old.Rollout.State != o.Rollout.State:
		s.warn("overlay-late", fmt.Sprintf("rollout %q is %s, not %s", o.ID, old.Rollout.State, o.Rollout.State), "see `meshlog rollout status`", "nothing changes")
		return
	case o.Remove:
		s.removeOverlay(o.ID)
		return
	case s.variant.used(&s.state, o.ID), old == nil && s.overlays[o.ID] != nil:
		s.warn("overlay-used", fmt.Sprintf("the id %q of a rollout was used before", o.ID), "append it again under another id", "nothing changes")
		return
	}
	if why := s.unfit(o.ID, old, o); why != "" {
		s.warn("overlay-late", fmt.Sprintf("rollout %q: %s", o.ID, why), "see `meshlog rollout status`", "nothing changes")
		return
	}
	staging := *o.Rollout
	staging.Since = s.at
	over := newOverlay(world.Overlay{
		ID: o.ID, Kind: o.Kind, Reason: o.Reason, Actor: e.Actor, Observed: e.Observed, Values: s.lying(o), Rollout: &staging,
	}, s.seq)
	if old != nil {
		over.Reason = cmp.Or(over.Reason, old.Reason)
		for k, v := range old.values {
			if _, again := over.values[k]; !again {
				over.values[k] = v
			}
		}
		if staging.State == old.Rollout.State && staging.Step == old.Rollout.Step { // only values are new
			staging.Since, over.seq = old.Rollout.Since, old.seq
		}
	}
	for _, k := range s.forbiddenIn(over) {
		delete(over.values, k)
	}
	for k := range over.values {
		s.changing(k)
	}
	s.setOverlay(over)
	if staging.State == ident.RolloutStopped {
		s.stop(over, s.waitingRollout())
	}
	s.touch(o.ID)
}

// unfit returns why a rollout cannot become as far as a record says; empty: it can. At most
// one waits, and one runs; the steps of one only go forward, and one that was stopped stays
// so until it is removed.
func (s *step) unfit(id string, old *overlay, o *events.Overlay) string {
	to := o.Rollout
	for _, other := range s.sortedRollouts() {
		if other.ID != id && to.State != ident.RolloutStopped && other.Rollout.State == to.State {
			return fmt.Sprintf("%s is %s already", other.ID, to.State)
		}
	}
	if old == nil {
		if to.Ordered || to.State == ident.RolloutStopped {
			return "there is none of that id"
		}
		return ""
	}
	switch was := old.Rollout; {
	case was.State == ident.RolloutStopped:
		return "it was stopped"
	case was.State == ident.RolloutWaiting && (to.State == ident.RolloutStopped || to.Ordered):
		return "it has not begun"
	case was.State == ident.RolloutRunning && to.State == ident.RolloutWaiting:
		return "it has begun"
	case was.State == ident.RolloutRunning && to.State == ident.RolloutRunning && to.Step == was.Step && len(o.Values) > 0:
		return "" // the builder corrects values
	case was.State == ident.RolloutRunning && to.State == ident.RolloutRunning && to.Step <= was.Step:
		return fmt.Sprintf("it is at step %d already", was.Step)
	}
	return ""
}

// stop makes the values of o lift when the sources offer other values than they do now. A
// key for which next, the rollout that waits, has a value goes there: it is served as before
// the stopped one, and what its source offers now is tried next.
func (s *step) stop(o, next *overlay) {
	for k, v := range maps.Clone(o.values) {
		if next != nil {
			if _, waits := next.values[k]; waits {
				v.Kept = true
				next.values[k] = v
				s.lift(o, k)
				s.touch(next.ID)
				continue
			}
		}
		v.Base = s.offeredHash(k)
		o.values[k] = v
	}
}

// queue adds to the rollout that waits what the record has changed: the value that was
// served before, if that is the first change since. A change of endpoints, what an
// operator rolls back, what a rollout itself changes, and what returns to the value of one
// that was stopped go to the proxies at once.
func (s *step) queue() {
	next := s.waitingRollout()
	if next == nil || s.rolling || !s.variant.queues() {
		return
	}
	for k, was := range s.before {
		if v, has := next.values[k]; has {
			if sameValue(v.Value, s.without(k, next)) { // what was to change is as before
				s.lift(next, k)
				s.touch(next.ID)
			}
			continue
		}
		is := s.served(k)
		if sameValue(was, is) || s.rolledBack(k) || s.stoppedFor(k) || was != nil && is != nil && s.judge.EndpointsOnly(k, objectOf(k, was), objectOf(k, is)) {
			continue
		}
		if was != nil && s.forbids(k, newValue(k, *was)) {
			continue
		}
		next.values[k] = ident.OverlayValue{Key: k, Value: was, Kept: true}
		s.over[k] = append(s.over[k], next)
		s.touch(next.ID)
	}
}

// without returns what would be served for k without the value of o.
func (s *state) without(k ident.Key, o *overlay) *ident.Value {
	return s.servedBy(k, slices.DeleteFunc(slices.Clone(s.over[k]), func(x *overlay) bool { return x == o }))
}

// rolledBack reports whether an operator serves an earlier value of k.
func (s *state) rolledBack(k ident.Key) bool {
	return slices.ContainsFunc(s.over[k], func(o *overlay) bool { return o.Kind == ident.Rollback })
}

// stoppedFor reports whether a rollout that was stopped keeps a value of k in service.
func (s *state) stoppedFor(k ident.Key) bool {
	return slices.ContainsFunc(s.over[k], func(o *overlay) bool { return o.Kind == ident.Rollout && o.Rollout.State == ident.RolloutStopped })
}

// rebaseRollouts gives the rollouts the values that they have in the base of a segment. A
// fold of another build has judged the records before otherwise, so what it has kept counts
// for nothing; how far a rollout is, only records say. What no version has is found by the
// builder: it compares what it publishes with the head.
func (s *step) rebaseRollouts(base *state) {
	for _, o := range s.sortedRollouts() {
		was := base.rollouts[o.ID]
		values := map[ident.Key]ident.OverlayValue{}
		if was != nil {
			maps.Copy(values, was.values)
		} else {
			maps.Copy(values, o.values)
			maps.DeleteFunc(values, func(_ ident.Key, v ident.OverlayValue) bool { return v.Kept })
		}
		clean := *o
		clean.values = values
		s.setOverlay(&clean)
	}
	var waited *overlay // in the base: it may have begun since, and have been stopped too
	if o := base.waitingRollout(); o != nil {
		waited = s.rollouts[o.ID]
	}
	rollouts := s.sortedRollouts()
	if i := slices.Index(rollouts, waited); i >= 0 { // that one last
		rollouts = append(slices.Delete(rollouts, i, i+1), waited)
	}
	for _, o := range rollouts {
		if o.Rollout.State != ident.RolloutStopped {
			continue
		}
		if was := base.rollouts[o.ID]; was == nil || was.Rollout.State != ident.RolloutStopped {
			next := waited
			if next == nil || next == o {
				next = s.waitingRollout()
			}
			s.stop(o, next)
		}
		for k := range maps.Clone(o.values) {
			s.liftOver(k, s.offeredHash(k))
		}
	}
}

// sortedRollouts returns the rollouts, sorted by id.
func (s *state) sortedRollouts() (all []*overlay) {
	for _, id := range slices.Sorted(maps.Keys(s.rollouts)) {
		all = append(all, s.rollouts[id])
	}
	return all
}

func (s *state) waitingRollout() *overlay { return s.rolloutThat(ident.RolloutWaiting) }

func (s *state) rolloutThat(is ident.RolloutState) *overlay {
	for _, o := range s.rollouts {
		if o.Rollout.State == is {
			return o // unfit lets no other one be
		}
	}
	return nil
}

// Unstage gives what waits and what is under way to all proxies, to see what changes come
// to that are not appended yet.
func (f *Fold) Unstage() {
	for _, o := range f.sortedRollouts() {
		if o.Rollout.State != ident.RolloutStopped {
			f.dropOverlay(o.ID)
		}
	}
}

// Rollout is a rollout and the record that made it as far as it is.
type Rollout struct {
	world.Overlay
	Seq uint64 // 0: it is of an earlier epoch
}

// Rollouts returns the rollouts, sorted by id.
func (f *Fold) Rollouts() (all []Rollout) {
	for _, o := range f.sortedRollouts() {
		all = append(all, Rollout{o.full(), o.seq})
	}
	return all
}

// ServedTo returns the value of k that proxies are served which no pin is for: those that
// the running rollout has reached, and all others.
func (f *Fold) ServedTo(k ident.Key) (reached, others *ident.Value) {
	reached = f.served(k)
	if o := f.rolloutThat(ident.RolloutRunning); o != nil && !f.rolledBack(k) {
		if v, has := o.values[k]; has {
			return reached, v.Value
		}
	}
	return reached, reached
}

// Queues reports whether a rollout may keep v for k, which may be nil: k is of a kind that
// some proxies may have otherwise, neither an operator nor a stopped rollout serves an earlier
// value of it, and its source may publish v.
func (f *Fold) Queues(k ident.Key, v *ident.Value) bool {
	return f.judge.Stages(k.Kind) && !f.rolledBack(k) && !f.stoppedFor(k) && (v == nil || !f.forbids(k, newValue(k, *v)))
}

// EndpointsOnly reports whether two values of a key, which may be nil, differ in endpoints
// only.
func (f *Fold) EndpointsOnly(k ident.Key, a, b *ident.Value) bool {
	return a != nil && b != nil && f.judge.EndpointsOnly(k, objectOf(k, a), objectOf(k, b))
}

// stoppages returns a Diagnostic for each rollout that was stopped.
func (f *Fold) stoppages() (all []problem.Diagnostic) {
	for _, o := range f.sortedRollouts() {
		if o.Rollout.State != ident.RolloutStopped || len(o.values) == 0 {
			continue
		}
		all = append(all, problem.Diagnostic{
			Severity: problem.Error, Code: "rollout-stopped",
			Reason: fmt.Sprintf("%s was stopped at step %d: %s; it is about %s: %s",
				o.ID, o.Rollout.Step, o.Reason, counted(len(o.values)), firstOf(slices.Collect(maps.Keys(o.values)))),
			Advice: "correct the objects at their source, or give them to all proxies with `meshlog rollout promote --all " + o.ID + "`",
			Effect: "all proxies are served the version before; another value of an object is a new rollout",
		})
	}
	return all
}

// Running returns the id of the rollout that runs; empty: none does.
func (f *Fold) Running() string {
	if o := f.rolloutThat(ident.RolloutRunning); o != nil {
		return o.ID
	}
	return ""
}

// HasView reports whether there is a pin of that id, or a rollout of that id runs.
func (f *Fold) HasView(id string) bool { return f.pins[id] != nil || id != "" && id == f.Running() }

// HasOverlay reports whether there is an overlay of that id.
func (f *Fold) HasOverlay(id string) bool { return f.overlays[id] != nil }

// HasValue reports whether the overlay of that id has a value for k.
func (f *Fold) HasValue(id string, k ident.Key) bool {
	o := f.overlays[id]
	if o == nil {
		return false
	}
	_, has := o.values[k]
	return has
}

// OverlayIDs returns the ids of all overlays, sorted.
func (f *Fold) OverlayIDs() []string { return slices.Sorted(maps.Keys(f.overlays)) }

// OverlayValues returns the values of an overlay, in no order.
func (f *Fold) OverlayValues(id string) []ident.OverlayValue {
	if o := f.overlays[id]; o != nil {
		return slices.Collect(maps.Values(o.values))
	}
	return nil
}
