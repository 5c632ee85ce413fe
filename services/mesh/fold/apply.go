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

// step is one call of Apply.
type step struct {
	*Fold
	seq      uint64
	change   world.Change
	problems []problem.Diagnostic
	// Overlays whose rows changed; they are written once, at the end.
	touched map[string]struct{}
	// policy: another MeshPolicy may count.
	policy bool
}

func (s *step) warn(code, reason, advice, effect string) {
	s.problems = append(s.problems, problem.Diagnostic{
		Severity: problem.Warning, Code: code, Reason: reason, Advice: advice, Effect: effect,
	})
}

// event applies the body of a record.
func (s *step) event(e events.Event) {
	switch b := e.Body.(type) {
	case *events.Object:
		s.object(e, b)
	case *events.Begin:
		s.begin(b)
	case *events.Alive:
		s.alive(b)
	case *events.Overlay:
		s.overlay(e, b)
	}
}

// finish judges again what a new policy decides otherwise, and writes the rows of
// the overlays that changed.
func (s *step) finish() world.Change {
	if s.policy {
		s.enforce()
	}
	for _, id := range slices.Sorted(maps.Keys(s.touched)) {
		s.change.Rows = append(s.change.Rows, s.overlays[id].change(id, s.seq))
		s.change.EndpointsOnly = false
	}
	return s.change
}

func (s *step) touch(id string) {
	if s.touched == nil {
		s.touched = map[string]struct{}{}
	}
	s.touched[id] = struct{}{}
	s.unsaved.overlay(id)
}

// object applies a PUT or DELETE, keeps it for later, or drops it.
func (s *step) object(e events.Event, o *events.Object) {
	sh := s.shard(o.Key.Shard())
	s.unsaved.shard(sh)
	if s.variant.fenced(sh, o.Session) {
		sh.Strangers++
		return
	}
	if s.lost(sh, o.Pseq, o.Low) {
		return
	}
	sh.Seq = s.seq
	r := newStaged(s.seq, e)
	switch {
	case sh.Listing:
		s.variant.list(s, sh, r)
	case s.variant.atomic(o.Batch):
		s.batch(sh, r)
	default:
		s.speak(sh, r)
	}
}

func (s *step) stage(sh *shard, r staged) {
	sh.staged = append(sh.staged, r)
	s.unsaved.staged(r.seq, &r)
}

func (s *step) unstage(sh *shard) {
	for _, r := range sh.staged {
		s.unsaved.staged(r.seq, nil)
	}
	sh.staged, sh.indexes = nil, nil
}

// batch keeps r until its change set is complete. A record of another batch
// discards the staged one; a record of the same index replaces the earlier one.
func (s *step) batch(sh *shard, r staged) {
	b := r.object().Batch
	if len(sh.staged) > 0 && sh.staged[0].object().Batch.ID != b.ID {
		s.unstage(sh)
	}
	if _, ok := sh.indexes[b.Index]; ok {
		sh.staged = slices.DeleteFunc(sh.staged, func(x staged) bool {
			again := x.object().Batch.Index == b.Index
			if again {
				s.unsaved.staged(x.seq, nil)
			}
			return again
		})
	}
	if sh.indexes == nil {
		sh.indexes = map[uint32]struct{}{}
	}
	sh.indexes[b.Index] = struct{}{}
	s.stage(sh, r)
	if uint64(len(sh.staged)) != uint64(b.Total) {
		return
	}
	all := sh.staged
	s.unstage(sh)
	slices.SortStableFunc(all, byPseq)
	for _, r := range all {
		s.speak(sh, r)
	}
}

func byPseq(a, b staged) int { return cmp.Compare(a.object().Pseq, b.object().Pseq) }

// speak applies r, unless the session already set the key with a later pseq.
func (s *step) speak(sh *shard, r staged) {
	o := r.object()
	e := sh.add(o.Key)
	if s.variant.outdated(sh, e, o.Pseq) {
		return
	}
	e.seq, e.lastPseq, e.origin = r.seq, o.Pseq, o.Origin
	s.unsaved.entry(e)
	s.offer(sh, e, r.value, r.seq)
}

// offer sets the value that e's source offers since record seq; nil: the source
// has deleted the key.
func (s *step) offer(sh *shard, e *entry, v *value, seq uint64) {
	s.liftOver(e.key, hashOf(v))
	switch {
	case v == nil:
		sh.setOffered(e, nil)
		e.problems, e.origin = nil, ""
		delete(s.troubled, e.key)
		s.setGood(e, nil, seq)
	case hashOf(e.offered) == v.hash:
		// It was judged before.
	default:
		sh.setOffered(e, v)
		switch good := s.assess(&s.state, e); {
		case good:
			s.setGood(e, v, seq)
		case e.forbidden():
			s.setGood(e, nil, seq)
		default:
			s.setGood(e, s.fallback(e), seq)
		}
		s.problems = append(s.problems, e.diagnostics()...)
	}
}

// setGood makes v the last good value of e, and adds the change of its row.
func (s *step) setGood(e *entry, v *value, seq uint64) {
	old := e.good
	e.good = v
	if hashOf(old) == hashOf(v) {
		return
	}
	s.noticePolicy(e.key)
	e.goodSeq = seq
	if v == nil {
		e.goodSeq = 0
	}
	if len(s.change.Rows) == 0 || s.change.EndpointsOnly {
		s.change.EndpointsOnly = s.judge.EndpointsOnly(e.key, old.object(), v.object())
	}
	s.change.Rows = append(s.change.Rows, e.change(seq))
}

// liftOver takes k out of the overlays that were made for another value of k
// than the offered one.
func (s *step) liftOver(k ident.Key, offered ident.Hash) {
	for _, o := range slices.Clone(s.over[k]) {
		if s.variant.lies(o.values[k].Base, offered) {
			continue
		}
		s.lift(o, k)
		s.noticePolicy(k)
		if o.empty() {
			delete(s.overlays, o.ID)
		}
		s.touch(o.ID)
	}
}

// unread reports whether it is unknown what k's source offers for it: the epoch began
// without a value for k, and the source was not listed since. An overlay that a builder
// appends again to an epoch whose base is lost covers k until the source has answered.
func (s *step) unread(k ident.Key) bool {
	sh := s.shards[k.Shard()]
	return s.offeredHash(k).IsZero() && (sh == nil || !sh.Synced)
}

// liftUnread takes the keys of these kinds that have no value out of the overlays. An
// alive has shown that the shard has the source's digest, so the source offers none.
func (s *step) liftUnread(sh *shard, kinds events.Kinds) {
	absent := func(k ident.Key) bool {
		return k.Shard() == sh.name && kinds.Cover(k.Kind) && s.offeredHash(k).IsZero()
	}
	for _, o := range slices.Collect(maps.Values(s.overlays)) {
		for k := range maps.Clone(o.values) {
			if absent(k) {
				s.liftOver(k, ident.Hash{})
			}
		}
	}
}

// overlay puts or removes an overlay.
func (s *step) overlay(e events.Event, o *events.Overlay) {
	if old := s.overlays[o.ID]; old != nil {
		for k := range old.values {
			s.noticePolicy(k)
		}
	}
	if o.Remove {
		s.gone[o.ID] = struct{}{}
		s.unsaved.overlay(o.ID)
		if s.dropOverlay(o.ID) {
			s.touch(o.ID)
		}
		return
	}
	if s.variant.used(&s.state, o.ID) {
		s.warn("overlay-used", fmt.Sprintf("overlay %q was removed before: an id is used once", o.ID),
			"append it again under another id", "nothing changes")
		return
	}
	values := slices.DeleteFunc(slices.Clone(o.Values), func(v ident.OverlayValue) bool {
		late := v.Resource == nil && !s.variant.lies(v.Base, s.offeredHash(v.Key)) && !s.unread(v.Key)
		if late {
			s.problems = append(s.problems, problem.Diagnostic{
				Severity: problem.Warning, Code: "overlay-late", Key: v.Key,
				Reason: fmt.Sprintf("overlay %q was made for another value of the object than its source offers now", o.ID),
				Advice: "look at the object, and append the overlay again if it still applies",
				Effect: "the overlay does not change the object",
			})
		}
		return late
	})
	over := newOverlay(world.Overlay{
		ID: o.ID, Kind: o.Kind, Reason: o.Reason, Actor: e.Actor, Observed: e.Observed, Values: values,
	}, s.seq)
	if over.Kind == ident.Hold {
		for _, k := range s.forbiddenIn(over) {
			delete(over.values, k)
		}
	}
	if !over.empty() {
		s.setOverlay(over)
		s.touch(o.ID)
		for k := range over.values {
			s.noticePolicy(k)
		}
	}
}
