package fold

import (
	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
)

// The rules that the scenarios and the fault simulation prove necessary. Each
// is a method of variant and calls variant.has with its name, which returns true
// except in a build with the tag "mutants". The rules use state inside the fold, so
// a wrapper around records or the judge could not leave out all of them.

// fenced reports whether a record is of another session than the shard's last.
func (v variant) fenced(sh *shard, session string) bool {
	return v.has("session_fence") && (sh.Session == "" || sh.Session != session)
}

// outdated reports whether the session set e's key with this pseq or a later
// one.
func (v variant) outdated(sh *shard, e *entry, pseq uint64) bool {
	return v.has("p_order") && sh.speaks(e) && e.lastPseq >= pseq
}

// gap reports whether a record below low, which is acknowledged, is not on the
// log.
func (v variant) gap(sh *shard, low uint64) bool { return v.has("gap") && low > sh.Floor+1 }

// list keeps a record of a listing until the alive that closes the listing.
func (v variant) list(s *step, sh *shard, r staged) {
	s.stage(sh, r)
	if !v.has("stage") {
		s.speak(sh, r)
	}
}

// differ reports whether an alive has another digest than the fold.
func (v variant) differ(said, known events.Digest) bool { return v.has("digest") && said != known }

// partial reports whether an alive closes a listing that could not read
// everything: it removes nothing, is not compared and makes nothing SYNCED.
func (v variant) partial(a *events.Alive) bool { return v.has("partial") && a.Partial }

// compared returns the kinds that a session's digests and sweeps cover.
func (v variant) compared(kinds events.Kinds) events.Kinds {
	if !v.has("kinds") {
		return nil
	}
	return kinds
}

// stranger asks for a listing after an alive of another session than the
// shard's last.
func (v variant) stranger(s *step, sh *shard, reason string) {
	if v.has("stranger") {
		s.ask(sh, reason)
	}
}

// atomic reports whether a record waits for the rest of its batch.
func (v variant) atomic(b events.Batch) bool { return v.has("atomic") && b.Total > 0 }

// lastGood returns the last good value that k has in the base of a segment.
func (v variant) lastGood(base *state, k ident.Key) *value {
	if e := base.entry(k); e != nil && v.has("last_good") {
		return e.good
	}
	return nil
}

// lifts reports whether an overlay lifts by itself: a hold, and a rollout that was stopped.
// What an operator has said holds until an operator says otherwise.
func (v variant) lifts(k ident.OverlayKind, r *ident.Staging) bool {
	return !v.has("operator") || k == ident.Hold || k == ident.Rollout && r.State == ident.RolloutStopped
}

// queues reports whether a rollout that waits keeps what changes.
func (v variant) queues() bool { return v.has("rollout") }

// keeps reports whether pins keep what changes for all other proxies.
func (v variant) keeps() bool { return v.has("pin") }

// lies reports whether an overlay made for the value base lies over the offered
// one.
func (v variant) lies(base, offered ident.Hash) bool {
	return !v.has("overlay_base") || base == offered
}

// used reports whether an overlay of that id was removed.
func (v variant) used(s *state, id string) bool {
	_, gone := s.gone[id]
	return v.has("once") && gone
}

// listed reports whether sh closed a listing in this epoch; partial: also one
// that could not read everything.
func (v variant) listed(sh *shard, partial bool) bool {
	return !v.has("gate") || sh != nil && (sh.Synced || partial && sh.Partial)
}
