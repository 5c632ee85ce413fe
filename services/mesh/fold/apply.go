package fold

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
)

// step is one call of Apply.
type step struct {
	*Fold
	seq      uint64
	at       time.Time // of the record
	change   world.Change
	problems []problem.Diagnostic
	// Overlays whose rows changed; they are written once, at the end.
	touched map[string]struct{}
	// policy: another MeshPolicy may count.
	policy bool
	// before is what was served for keys that may have changed, if there are pins or a
	// rollout waits; nil: nothing.
	before map[ident.Key]*ident.Value
	begun  map[string]bool // pins that keep nothing of what this record changes
	// rolling: the record is about a rollout, and what it changes is not kept for the next.
	rolling bool
}

// serve makes the value that e's source offers the one that counts, if it is good.
func (s *step) serve(e *entry, seq uint64) {
	switch good := s.assess(&s.state, e); {
	case good:
		s.setGood(e, e.offered, seq)
	case e.forbidden(), s.forbids(e.key, e.good):
		s.setGood(e, nil, seq)
	default:
		s.setGood(e, s.fallback(e), seq)
	}
}

// keep leaves the value of e that counts, unless its source may not publish it.
func (s *step) keep(e *entry, seq uint64) {
	if e.offered != nil {
		s.assess(&s.state, e)
	}
	s.noticePolicy(e.key)
	switch {
	case s.forbids(e.key, e.good):
		s.setGood(e, nil, seq)
	case hashOf(e.good) == hashOf(e.offered):
		e.good = e.offered // which has its message
	}
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
	s.queue()
	s.keepPinned()
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
	frozen := s.Frozen(e.key)
	switch {
	case v == nil:
		sh.setOffered(e, nil)
		e.problems, e.origin = nil, ""
		delete(s.troubled, e.key)
		s.noticePolicy(e.key)
		if !frozen {
			s.setGood(e, nil, seq)
		}
	case hashOf(e.offered) == v.hash:
		// It was judged before.
	case frozen:
		sh.setOffered(e, v)
		s.keep(e, seq)
		s.problems = append(s.problems, e.diagnostics()...)
	default:
		sh.setOffered(e, v)
		s.serve(e, seq)
		s.problems = append(s.problems, e.diagnostics()...)
	}
	s.withhold(e)
}

// setGood makes v the last good value of e, and adds the change of its row.
func (s *step) setGood(e *entry, v *value, seq uint64) {
	old := e.good
	s.changing(e.key)
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

// liftOver takes k out of the holds that were made for another value of k than the
// offered one. It takes no frozen one: what its source offers does not count yet.
func (s *step) liftOver(k ident.Key, offered ident.Hash) {
	if s.Frozen(k) {
		return
	}
	for _, o := range slices.Clone(s.over[k]) {
		if !s.variant.lifts(o.Kind, o.Rollout) || s.variant.lies(o.values[k].Base, offered) {
			continue
		}
		s.changing(k)
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
func (f *Fold) unread(k ident.Key) bool {
	sh := f.shards[k.Shard()]
	return f.offeredHash(k).IsZero() && (sh == nil || !sh.Synced)
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
