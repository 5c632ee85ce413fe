package fold

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
)

// pinned completes a pin with the values that an earlier record gave it, so that a
// record which adds values takes none away. It returns false, with a Diagnostic, if
// there are as many pins as there may be.
func (s *step) pinned(o *overlay) bool {
	old := s.pins[o.ID]
	if old == nil && len(s.pins) >= world.MaxPins {
		s.warn("overlay-many", fmt.Sprintf("there are %d pins, and %q would be one more", len(s.pins), o.ID),
			"unpin one of them, and append it again under another id", "nothing changes")
		return false
	}
	if old == nil {
		s.begun = map[string]bool{o.ID: true}
	} else {
		for k, v := range old.values {
			if _, again := o.values[k]; !again {
				o.values[k] = v
			}
		}
	}
	return true
}

// stages reports whether a pin or a rollout may have a value of k, else with a Diagnostic.
func (s *step) stages(id string, k ident.Key) bool {
	if s.judge.Stages(k.Kind) {
		return true
	}
	s.problems = append(s.problems, problem.Diagnostic{
		Severity: problem.Warning, Code: "overlay-state", Key: k,
		Reason: fmt.Sprintf("overlay %q is about the kind %s, which is the same for all proxies", id, k.Kind),
		Advice: "nothing is to be done",
		Effect: "the overlay does not change the object",
	})
	return false
}

// changing notes the value that is served for k before a record changes it, so that pins
// and the rollout that waits can keep that value.
func (s *step) changing(k ident.Key) {
	if len(s.pins) == 0 && len(s.rollouts) == 0 || !s.judge.Stages(k.Kind) {
		return
	}
	if _, noted := s.before[k]; noted {
		return
	}
	if s.before == nil {
		s.before = map[ident.Key]*ident.Value{}
	}
	s.before[k] = s.served(k)
}

// rebase gives the pins the values that they have in the base of a segment, and notes what
// the base serves. A fold of another build than the segment before has judged its values
// otherwise, so what it has kept counts for nothing. A pin that is not in the base keeps
// what its own records say.
func (s *step) rebase(base *state) {
	if len(s.pins) == 0 {
		return
	}
	s.begun = map[string]bool{}
	for id, o := range s.pins {
		maps.DeleteFunc(o.values, func(_ ident.Key, v ident.OverlayValue) bool { return v.Kept })
		published := base.pins[id]
		if published == nil {
			s.begun[id] = true
			continue
		}
		for k, v := range published.values {
			if _, said := o.values[k]; !said && v.Kept {
				o.values[k] = v
			}
		}
	}
	s.before = map[ident.Key]*ident.Value{}
	note := func(k ident.Key) {
		if s.judge.Stages(k.Kind) {
			s.before[k] = base.served(k)
		}
	}
	for _, of := range []*state{base, &s.state} {
		for _, sh := range of.shards {
			for k := range sh.entries {
				note(k)
			}
		}
		for k := range of.over {
			note(k)
		}
	}
}

// keepPinned adds to each pin what is no longer served to all other proxies: the value
// of the pin's version, if that is the first change since. A change of endpoints reaches
// pinned proxies too.
func (s *step) keepPinned() {
	if !s.variant.keeps() {
		return
	}
	for k, was := range s.before {
		is := s.served(k)
		if sameValue(was, is) || was != nil && is != nil && s.judge.EndpointsOnly(k, objectOf(k, was), objectOf(k, is)) {
			continue
		}
		if was != nil && s.forbids(k, newValue(k, *was)) {
			continue
		}
		for _, o := range s.pins {
			if _, has := o.values[k]; !has && !s.begun[o.ID] {
				o.values[k] = ident.OverlayValue{Key: k, Value: was, Kept: true}
				s.touch(o.ID)
			}
		}
	}
	s.before = nil
}

// served returns the value that a World serves for k to proxies that no pin is for, and
// that a rollout has reached.
func (s *state) served(k ident.Key) *ident.Value { return s.servedBy(k, s.over[k]) }

// servedBy is served, if only these overlays were over k.
func (s *state) servedBy(k ident.Key, over []*overlay) *ident.Value {
	if len(over) > 0 {
		first := slices.MinFunc(over, func(a, b *overlay) int { return world.CompareOverlays(&a.Overlay, &b.Overlay) })
		return first.values[k].Value
	}
	if e := s.entry(k); e != nil && e.good != nil {
		return &e.good.Value
	}
	return nil
}

func objectOf(k ident.Key, v *ident.Value) *world.Object {
	return &world.Object{Key: k, Created: v.Created, Value: *v}
}

func sameValue(a, b *ident.Value) bool {
	return a == b || a != nil && b != nil && a.Type == b.Type && a.Created.Equal(b.Created) && bytes.Equal(a.Bytes, b.Bytes)
}

// Pins returns the overlays that keep some proxies on earlier values, sorted by id.
func (f *Fold) Pins() []world.Overlay {
	var all []world.Overlay
	for _, id := range slices.Sorted(maps.Keys(f.pins)) {
		all = append(all, f.pins[id].full())
	}
	return all
}
