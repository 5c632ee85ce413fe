package fold

import (
	"fmt"
	"slices"
	"strings"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
)

// begin opens a session: from now on the shard's other sessions do not count.
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

// lost notes the pseq of a record (0: it has none) and reports whether the log
// has lost an acknowledged record of the session. From then on no record of the
// session counts.
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

// ask asks sh for a new listing.
func (s *step) ask(sh *shard, reason string) {
	if sh.need == "" {
		s.warn("listing-needed", sh.name.String()+": "+reason, "", "its objects do not change until it lists again")
	}
	sh.need = reason
}

// alive applies a heartbeat; the first one of a session closes its listing.
func (s *step) alive(a *events.Alive) {
	sh := s.shard(a.Shard)
	s.unsaved.shard(sh)
	if sh.session == "" || sh.session != a.Session {
		sh.strangers++
		s.variant.stranger(s, sh, fmt.Sprintf("session %s sent a heartbeat, and it is not the session that began last", a.Session))
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
			s.ask(sh, fmt.Sprintf("the listing of session %s does not have the digest that it sent", a.Session))
			return
		}
		s.closeListing(sh, &a.Listed, kinds)
		if a.Ends && len(kinds) > 0 {
			return // an operator removed these kinds, which does not mean that the source was read
		}
		sh.synced, sh.partial, sh.covered = true, false, kinds
	case a.Digest == events.Digest{}:
		// The watcher has unacknowledged changes, so it sends no digest.
	case s.variant.differ(a.Digest, sh.digest(kinds)):
		s.ask(sh, fmt.Sprintf("the objects of the shard do not have the digest that session %s sent", a.Session))
	default:
		sh.synced, sh.partial = true, false
	}
}

// digest returns the digest of the offered values of these kinds.
func (sh *shard) digest(kinds events.Kinds) events.Digest {
	digests := sh.digestsOf(kinds)
	return digests.Sum()
}

// listingDigest returns the digest that these kinds would have after the
// listing: of the staged records, and of the other keys in buckets that were not
// listed.
func (sh *shard) listingDigest(listed *events.BucketSet, kinds events.Kinds) events.Digest {
	digests := sh.digestsOf(kinds)
	for b := range digests {
		if listed.Has(b) {
			digests[b] = events.Digest{}
		}
	}
	inOrder := slices.Clone(sh.staged)
	slices.SortStableFunc(inOrder, byPseq)
	type change struct {
		hash ident.Hash
		pseq uint64
	}
	listing := make(map[ident.Key]change, len(inOrder))
	for _, r := range inOrder {
		o := r.object()
		if !kinds.Cover(o.Key.Kind) {
			continue
		}
		b := events.Bucket(o.Key)
		before, again := listing[o.Key]
		switch {
		case again && before.pseq == o.Pseq:
			continue // speak drops it
		case !again && !listed.Has(b):
			if e := sh.entries[o.Key]; e != nil {
				before.hash = hashOf(e.offered)
			}
		}
		now := change{pseq: o.Pseq, hash: hashOf(r.value)}
		digests[b] = digests[b].With(before.hash).With(now.hash) // a zero hash changes no digest
		listing[o.Key] = now
	}
	return digests.Sum()
}

// closeListing applies the staged records, and removes the other keys of these
// kinds in the listed buckets; nil: it removes none.
func (s *step) closeListing(sh *shard, listed *events.BucketSet, kinds events.Kinds) {
	all := sh.staged
	s.unstage(sh)
	sh.listing = false
	var swept []*entry
	if listed != nil {
		kept := make(map[ident.Key]struct{}, len(all))
		for _, r := range all {
			kept[r.object().Key] = struct{}{}
		}
		for k, e := range sh.entries {
			if _, ok := kept[k]; !ok && e.offered != nil && listed.Has(e.bucket) && kinds.Cover(k.Kind) {
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
