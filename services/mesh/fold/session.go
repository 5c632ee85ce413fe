package fold

import (
	"fmt"
	"slices"
	"strings"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
)

// begin opens a session: from here on only its records count.
func (s *step) begin(b *events.Begin) {
	sh := s.shard(b.Shard)
	s.unsaved.shard(sh)
	s.unstage(sh)
	for k, e := range sh.buried {
		delete(sh.entries, k)
		s.unsaved.entry(e)
	}
	clear(sh.buried)
	sh.session, sh.holder, sh.beginSeq, sh.seq = b.Session, b.Holder, s.seq, s.seq
	sh.listing, sh.need = true, ""
	sh.floor, sh.seen, sh.hole = 0, nil, false
}

// lost notes the place of a record in its session (pseq 0: it has none) and
// says whether a record was acknowledged that is not on the log. Then nothing
// more of the session counts.
func (s *step) lost(sh *shard, pseq, low uint64) bool {
	if sh.hole {
		return true
	}
	if pseq > sh.floor+1 {
		if sh.seen == nil {
			sh.seen = map[uint64]struct{}{}
		}
		sh.seen[pseq] = struct{}{}
	}
	if pseq == sh.floor+1 {
		sh.floor++
		for len(sh.seen) > 0 {
			if _, ok := sh.seen[sh.floor+1]; !ok {
				break
			}
			sh.floor++
			delete(sh.seen, sh.floor)
		}
	}
	if !s.variant.gap(sh, low) {
		return false
	}
	sh.hole, sh.seen = true, nil
	s.ask(sh, fmt.Sprintf("record %d of session %s was acknowledged and is not on the log", sh.floor+1, sh.session))
	return true
}

// ask wants a new listing of sh.
func (s *step) ask(sh *shard, reason string) {
	if sh.need == "" {
		s.warn("listing-needed", sh.name.String()+": "+reason, "", "its objects stay as they are until it lists again")
	}
	sh.need = reason
}

// alive is a heartbeat; the first of a session closes its listing.
func (s *step) alive(a *events.Alive) {
	sh := s.shard(a.Shard)
	s.unsaved.shard(sh)
	if sh.session == "" || sh.session != a.Session {
		sh.strangers++
		s.variant.stranger(s, sh, fmt.Sprintf("session %s speaks, and it is not the one that began last", a.Session))
		return
	}
	if s.lost(sh, 0, a.Low) {
		return
	}
	sh.seq = s.seq
	partial := s.variant.partial(a)
	kinds := s.variant.compared(a.Kinds)
	switch {
	case partial:
		if sh.listing {
			s.closeListing(sh, nil, kinds)
			sh.partial, sh.covered = true, kinds
		}
	case sh.listing:
		if s.variant.differ(a.Digest, sh.listingDigest(&a.Listed, kinds)) {
			s.ask(sh, fmt.Sprintf("the listing of session %s is not what its digest says", a.Session))
			return
		}
		s.closeListing(sh, &a.Listed, kinds)
		if a.Ends && len(kinds) > 0 {
			return // an operator took these away: that says nothing of what the source can be read for
		}
		sh.synced, sh.partial, sh.covered = true, false, kinds
	case a.Digest == events.Digest{}:
		// Something is unacknowledged: nothing to compare.
	case s.variant.differ(a.Digest, sh.digest(kinds)):
		s.ask(sh, fmt.Sprintf("what is known is not what the digest of session %s says", a.Session))
	default:
		sh.synced, sh.partial = true, false
	}
}

// digest is over what is offered of these kinds.
func (sh *shard) digest(kinds events.Kinds) events.Digest {
	digests := sh.digestsOf(kinds)
	return digests.Sum()
}

// listingDigest is the digest over these kinds as it would be with the listing
// applied: the staged records, and of the rest what lies in buckets that were
// not listed.
func (sh *shard) listingDigest(listed *events.BucketSet, kinds events.Kinds) events.Digest {
	digests := sh.digestsOf(kinds)
	for b := range digests {
		if listed.Has(b) {
			digests[b] = events.Digest{}
		}
	}
	inOrder := slices.Clone(sh.staged)
	slices.SortStableFunc(inOrder, byPseq)
	type word struct {
		hash ident.Hash
		pseq uint64
	}
	said := make(map[ident.Key]word, len(inOrder))
	for _, r := range inOrder {
		o := r.object()
		if !kinds.Cover(o.Key.Kind) {
			continue
		}
		b := events.Bucket(o.Key)
		before, again := said[o.Key]
		switch {
		case again && before.pseq == o.Pseq:
			continue // speak will drop it
		case !again && !listed.Has(b):
			if e := sh.entries[o.Key]; e != nil {
				before.hash = hashOf(e.offered)
			}
		}
		now := word{pseq: o.Pseq, hash: hashOf(r.value)}
		digests[b] = digests[b].With(before.hash).With(now.hash) // a zero hash changes nothing
		said[o.Key] = now
	}
	return digests.Sum()
}

// closeListing applies what is staged, and removes what the listed buckets
// hold besides of these kinds; nil: nothing is removed.
func (s *step) closeListing(sh *shard, listed *events.BucketSet, kinds events.Kinds) {
	all := sh.staged
	s.unstage(sh)
	sh.listing = false
	var swept []*entry
	if listed != nil {
		said := make(map[ident.Key]struct{}, len(all))
		for _, r := range all {
			said[r.object().Key] = struct{}{}
		}
		for k, e := range sh.entries {
			if _, ok := said[k]; !ok && e.offered != nil && listed.Has(e.bucket) && kinds.Cover(k.Kind) {
				swept = append(swept, e)
			}
		}
		slices.SortFunc(swept, func(a, b *entry) int { return strings.Compare(a.row, b.row) })
	}
	for _, r := range all {
		s.speak(sh, r)
	}
	for _, e := range swept {
		s.offer(sh, e, nil, s.seq)
		if !sh.speaks(e) {
			delete(sh.entries, e.key)
			delete(sh.buried, e.key)
		}
		s.unsaved.entry(e)
	}
}
