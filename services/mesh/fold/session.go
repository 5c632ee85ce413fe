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
	for k, e := range sh.entries {
		if e.offered == nil && e.good == nil {
			delete(sh.entries, k)
			s.unsaved.entry(e)
		}
	}
	sh.Session, sh.Holder, sh.BeginSeq, sh.Seq = b.Session, b.Holder, s.seq, s.seq
	sh.Listing, sh.Need = true, ""
	sh.Floor, sh.arrived, sh.Hole = 0, nil, false
	sh.Operator = s.verdict.Operator
}

// lost notes the pseq of a record (0: it has none) and reports whether the log
// has lost an acknowledged record of the session. From then on no record of the
// session counts.
func (s *step) lost(sh *shard, pseq, low uint64) bool {
	if sh.Hole {
		return true
	}
	if pseq > sh.Floor+1 {
		if sh.arrived == nil {
			sh.arrived = map[uint64]struct{}{}
		}
		sh.arrived[pseq] = struct{}{}
	}
	if pseq == sh.Floor+1 {
		sh.Floor++
		for len(sh.arrived) > 0 {
			if _, ok := sh.arrived[sh.Floor+1]; !ok {
				break
			}
			sh.Floor++
			delete(sh.arrived, sh.Floor)
		}
	}
	if !s.variant.gap(sh, low) {
		return false
	}
	sh.Hole, sh.arrived = true, nil
	s.ask(sh, fmt.Sprintf("record %d of session %s was acknowledged and is not on the log", sh.Floor+1, sh.Session))
	return true
}

// ask asks sh for a new listing.
func (s *step) ask(sh *shard, reason string) {
	if sh.Need == "" {
		s.warn("listing-needed", sh.name.String()+": "+reason, "", "its objects do not change until it lists again")
	}
	sh.Need = reason
}

// alive applies a heartbeat; the first one of a session closes its listing.
func (s *step) alive(a *events.Alive) {
	sh := s.shard(a.Shard)
	s.unsaved.shard(sh)
	if sh.Session == "" || sh.Session != a.Session {
		sh.Strangers++
		s.variant.stranger(s, sh, fmt.Sprintf("session %s sent a heartbeat, and it is not the session that began last", a.Session))
		return
	}
	if s.lost(sh, 0, a.Low) {
		return
	}
	sh.Seq = s.seq
	partial := s.variant.partial(a)
	kinds := s.variant.compared(a.Kinds)
	switch {
	case partial:
		if sh.Listing {
			s.closeListing(sh, nil, kinds)
			sh.Partial, sh.Kinds = true, kinds
		}
	case sh.Listing:
		if s.variant.differ(a.Digest, sh.listingDigest(&a.Listed, kinds)) {
			s.ask(sh, fmt.Sprintf("the listing of session %s does not have the digest that it sent", a.Session))
			return
		}
		s.closeListing(sh, &a.Listed, kinds)
		if a.Ends && len(kinds) > 0 {
			return // an operator removed these kinds, which does not mean that the source was read
		}
		sh.Synced, sh.Partial, sh.Kinds = true, false, kinds
	case a.Digest == events.Digest{}:
		// The watcher has unacknowledged changes, so it sends no digest.
	case s.variant.differ(a.Digest, sh.digest(kinds)):
		s.ask(sh, fmt.Sprintf("the objects of the shard do not have the digest that session %s sent", a.Session))
	default:
		if !sh.Synced {
			s.liftUnread(sh, kinds)
		}
		sh.Synced, sh.Partial = true, false
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
	last := make(map[ident.Key]staged, len(sh.staged))
	for _, r := range sh.staged {
		o := r.object()
		before, again := last[o.Key]
		if kinds.Cover(o.Key.Kind) && (!again || before.object().Pseq < o.Pseq) {
			last[o.Key] = r
		}
	}
	for k, r := range last {
		d := &digests[events.Bucket(k)]
		if e := sh.entries[k]; e != nil && !listed.Has(events.Bucket(k)) {
			*d = d.With(hashOf(e.offered))
		}
		*d = d.With(hashOf(r.value)) // a zero hash changes no digest
	}
	return digests.Sum()
}

// closeListing applies the staged records, and removes the other keys of these
// kinds in the listed buckets; nil: it removes none.
func (s *step) closeListing(sh *shard, listed *events.BucketSet, kinds events.Kinds) {
	all := sh.staged
	s.unstage(sh)
	sh.Listing = false
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
		if !sh.speaks(e) && e.good == nil {
			delete(sh.entries, e.key)
		}
		s.unsaved.entry(e)
	}
	if listed != nil {
		s.liftUnread(sh, kinds)
	}
}
