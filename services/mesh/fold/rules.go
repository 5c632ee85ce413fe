//go:build !mutants

package fold

import (
	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
)

// The rules that the scenarios and the fault simulation prove necessary. Each
// is a function, so that mutants.go can replace it in a build with the tag
// "mutants"; a rule acts on state that only the fold has, so no wrapper around
// records or the judge can take all of them away.

// variant has no rule to take away in this build.
type variant struct{}

func variantOf(Judge) variant { return variant{} }

// fenced reports whether a record is of another session than the shard's last.
func (variant) fenced(sh *shard, session string) bool {
	return sh.session == "" || sh.session != session
}

// outdated reports whether the session set e's key with this pseq or a later
// one.
func (variant) outdated(sh *shard, e *entry, pseq uint64) bool {
	return sh.speaks(e) && e.lastPseq >= pseq
}

// gap reports whether a record below low, which is acknowledged, is not on the
// log.
func (variant) gap(sh *shard, low uint64) bool { return low > sh.floor+1 }

// list keeps a record of a listing until the alive that closes the listing.
func (variant) list(s *step, sh *shard, r staged) { s.stage(sh, r) }

// differ reports whether an alive has another digest than the fold.
func (variant) differ(said, known events.Digest) bool { return said != known }

// partial reports whether an alive closes a listing that could not read
// everything: it removes nothing, is not compared and makes nothing SYNCED.
func (variant) partial(a *events.Alive) bool { return a.Partial }

// compared returns the kinds that a session's digests and sweeps cover.
func (variant) compared(kinds events.Kinds) events.Kinds { return kinds }

// stranger asks for a listing after an alive of another session than the
// shard's last.
func (variant) stranger(s *step, sh *shard, reason string) { s.ask(sh, reason) }

// atomic reports whether a record waits for the rest of its batch.
func (variant) atomic(b events.Batch) bool { return b.Total > 0 }

// lastGood returns the last good value that k has in the base of a segment.
func (variant) lastGood(base *state, k ident.Key) *value {
	if e := base.entry(k); e != nil {
		return e.good
	}
	return nil
}

// lies reports whether an overlay made for the value base lies over the offered
// one.
func (variant) lies(base, offered ident.Hash) bool { return base == offered }

// used reports whether an overlay of that id was removed.
func (variant) used(s *state, id string) bool {
	_, gone := s.gone[id]
	return gone
}

// listed reports whether sh closed a listing in this epoch; partial: also one
// that could not read everything.
func (variant) listed(sh *shard, partial bool) bool {
	return sh != nil && (sh.synced || partial && sh.partial)
}
