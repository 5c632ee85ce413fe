package fold

import (
	"fmt"
	"maps"
	"slices"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
)

// overlay puts or removes an overlay.
func (s *step) overlay(e events.Event, o *events.Overlay) {
	if o.Kind == ident.Rollout {
		s.rollout(e, o)
		return
	}
	if !o.OfBuilder() { // a builder may write between an operator's messages
		whole, complete := s.act(e, o)
		if !complete {
			return
		}
		o = whole
	}
	scoped := o.Scope != nil
	if old := s.overlays[o.ID]; old != nil {
		scoped = scoped || old.Scope != nil
		for k := range old.values {
			s.noticePolicy(k)
			s.changing(k)
		}
	}
	if o.Remove {
		s.rolling = s.rollouts[o.ID] != nil
		s.removeOverlay(o.ID)
		return
	}
	if s.rollouts[o.ID] != nil {
		s.warn("overlay-used", fmt.Sprintf("overlay %q is a rollout", o.ID), "append it again under another id", "nothing changes")
		return
	}
	if s.variant.used(&s.state, o.ID) {
		s.warn("overlay-used", fmt.Sprintf("overlay %q was removed before: an id is used once", o.ID),
			"append it again under another id", "nothing changes")
		return
	}
	over := newOverlay(world.Overlay{
		ID: o.ID, Kind: o.Kind, Reason: o.Reason, Actor: e.Actor, Observed: e.Observed, Scope: o.Scope, Proxies: o.Proxies, Values: s.lying(o),
	}, s.seq)
	if over.Kind == ident.Pin && !s.pinned(over) {
		return
	}
	if permitted(over.Kind) {
		for _, k := range s.forbiddenIn(over) {
			delete(over.values, k)
		}
	}
	if over.empty() {
		return
	}
	for k := range over.values {
		s.changing(k)
	}
	s.setOverlay(over)
	s.touch(o.ID)
	for k := range over.values {
		s.noticePolicy(k)
	}
	if scoped {
		s.thaw() // an overlay of that id may have had another scope
		s.withholdAnew()
	}
}

func (s *step) removeOverlay(id string) {
	s.gone[id] = struct{}{}
	s.unsaved.overlay(id)
	if o := s.overlays[id]; o != nil {
		for k := range o.values {
			s.changing(k)
		}
	}
	if s.dropOverlay(id) {
		s.touch(id)
		s.thaw()
	}
}

// act returns the overlay that an operator's message completes: one of several
// messages waits for the others, which stand next to it on the log. Any other word
// of an operator ends the wait.
func (s *step) act(e events.Event, o *events.Overlay) (whole *events.Overlay, complete bool) {
	if len(s.acts) > 0 && s.acts[0].event.Body.(*events.Overlay).Batch.ID != o.Batch.ID {
		s.dropActs()
	}
	if o.Batch.Total <= 1 {
		return o, true
	}
	if int(o.Batch.Index) != len(s.acts) {
		return nil, false // it was appended twice, or one before it is missing
	}
	r := staged{seq: s.seq, event: e}
	s.acts = append(s.acts, r)
	s.unsaved.staged(r.seq, &r)
	if len(s.acts) < int(o.Batch.Total) {
		return nil, false
	}
	all := *s.acts[0].event.Body.(*events.Overlay)
	all.Values = nil
	for _, r := range s.acts {
		all.Values = append(all.Values, r.event.Body.(*events.Overlay).Values...)
	}
	s.dropActs()
	return &all, true
}

func (s *step) dropActs() {
	for _, r := range s.acts {
		s.unsaved.staged(r.seq, nil)
	}
	s.acts = nil
}

// lying returns the values of o that may lie over the world: of a hold those that are
// made for what the sources offer, of a rollback those of configuration.
func (s *step) lying(o *events.Overlay) []ident.OverlayValue {
	return slices.DeleteFunc(slices.Clone(o.Values), func(v ident.OverlayValue) bool {
		switch {
		case v.Resource != nil:
			return false
		case o.Kind == ident.Pin, o.Kind == ident.Rollout:
			return !s.stages(o.ID, v.Key)
		case !s.variant.lifts(o.Kind, nil) && !s.judge.Configures(v.Key.Kind):
			s.problems = append(s.problems, problem.Diagnostic{
				Severity: problem.Warning, Code: "overlay-state", Key: v.Key,
				Reason: fmt.Sprintf("overlay %q is about the kind %s, which is no configuration", o.ID, v.Key.Kind),
				Advice: "freeze its source, if it is to stay as it is",
				Effect: "the overlay does not change the object",
			})
			return true
		case !s.variant.lifts(o.Kind, nil), s.variant.lies(v.Base, s.offeredHash(v.Key)), s.unread(v.Key), s.Frozen(v.Key):
			return false
		}
		s.problems = append(s.problems, problem.Diagnostic{
			Severity: problem.Warning, Code: "overlay-late", Key: v.Key,
			Reason: fmt.Sprintf("overlay %q was made for another value of the object than its source offers now", o.ID),
			Advice: "look at the object, and append the overlay again if it still applies",
			Effect: "the overlay does not change the object",
		})
		return true
	})
}

// OverlayRemoved reports whether an overlay of that id was removed: appending it
// again has no effect.
func (f *Fold) OverlayRemoved(id string) bool {
	_, gone := f.gone[id]
	return gone
}

// Holds returns the overlays that the guard set, sorted by id. If a source loses
// many objects at once, they keep these objects in service.
func (f *Fold) Holds() []world.Overlay { return f.ofKind(ident.Hold) }

// Quarantines returns the overlays that stop serving a resource to clients of
// the software version that rejects it, sorted by id.
func (f *Fold) Quarantines() []world.Overlay { return f.ofKind(ident.Quarantine) }

func (f *Fold) ofKind(k ident.OverlayKind) []world.Overlay {
	var all []world.Overlay
	for _, id := range slices.Sorted(maps.Keys(f.overlays)) {
		if o := f.overlays[id]; o.Kind == k {
			all = append(all, o.full())
		}
	}
	return all
}
