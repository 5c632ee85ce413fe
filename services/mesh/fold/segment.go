package fold

import (
	"fmt"
	"iter"
	"maps"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/permit"
	"meshlog.dev/services/mesh/world"
)

// valid reports whether a segment counts: it begins a greater epoch, or it
// continues this one.
func (f *Fold) valid(g *events.Segment) bool {
	if g.EpochRecord == 0 {
		return g.Epoch > f.segment.Epoch
	}
	return g.Epoch == f.segment.Epoch && g.EpochRecord == f.segment.EpochRecord
}

// beginsEpoch reports whether rec begins a greater epoch, so that no record
// before it counts.
func (f *Fold) beginsEpoch(rec events.Record) bool {
	g, ok := rec.Event.Body.(*events.Segment)
	return ok && g.EpochRecord == 0 && f.valid(g)
}

// segmentRecord applies a valid segment, the record with that id: a greater epoch replaces the state by
// the base's, another build keeps the offered values; then all offered values are
// judged again over the base's last good values.
func (s *step) segmentRecord(id string, g *events.Segment, base iter.Seq2[string, []byte]) error {
	next := newState()
	if base != nil {
		var err error
		if next, _, err = parse(base); err != nil {
			return fmt.Errorf("base of segment %d: %w", s.seq, err)
		}
	}
	segment := Segment{Epoch: g.Epoch, Build: g.Build, Head: g.Head, VersionsSeq: g.VersionsSeq, EpochRecord: g.EpochRecord, ID: s.segment.ID}
	if g.EpochRecord == 0 {
		segment.EpochRecord, segment.ID = s.seq, id
		s.state = next.asBase()
		s.rules = s.policyRules(&next) // no record before it counts
		for _, sh := range s.shards {
			sh.Need = fmt.Sprintf("epoch %d began", g.Epoch)
		}
	}
	s.segment = segment
	s.rebase(&next)
	s.rebaseRollouts(&next)
	s.judgeAnew(next)
	s.keepPinned()
	s.touched = nil // the content has them
	s.change = s.Content()
	s.unsaved.rewrite()
	return nil
}

// judgeAnew judges all offered values again, policies first, because they decide
// about the others. A key whose value is not good gets the last good value of base,
// unless it is forbidden.
func (f *Fold) judgeAnew(base state) {
	clear(f.troubled)
	for name, sh := range base.shards {
		for k, e := range sh.entries {
			if e.good != nil && f.Frozen(k) { // its source may have deleted it, and this build may never have found it good
				f.shard(name).add(k)
			}
		}
	}
	judge := func(policies bool) {
		for _, sh := range f.shards {
			for k, e := range sh.entries {
				if (e.offered != nil || e.good != nil || f.Frozen(k)) && (k.Kind == permit.PolicyKind) == policies {
					f.judgeEntry(base, e)
				}
			}
		}
	}
	for was := (*permit.Rules)(nil); was == nil || !was.Equal(f.rules); { // as in enforce
		was = f.rules
		judge(true)
		f.rules = f.policyRules(&f.state)
	}
	judge(false)
	for _, o := range f.forbiddenHolds() {
		f.liftForbidden(o)
	}
	f.withholdAnew()
}

func (f *Fold) judgeEntry(base state, e *entry) {
	old, seq := hashOf(e.good), e.goodSeq
	e.good, e.goodSeq = f.variant.lastGood(&base, e.key), 0
	if e.offered == nil { // its deletion is withheld
		if f.forbids(e.key, e.good) { // the base may be older than the policy
			e.good = nil
		}
		if hashOf(e.good) == old {
			e.goodSeq = seq
		}
		return
	}
	if f.assess(&f.state, e) && !f.Frozen(e.key) {
		e.good, e.goodSeq = e.offered, e.seq
	} else if e.forbidden() || f.forbids(e.key, e.good) {
		e.good = nil
	} else if !f.Frozen(e.key) {
		e.good = f.fallback(e)
	}
	if e.good != nil && e.good.hash == old {
		e.goodSeq = seq
	}
	if hashOf(e.good) == hashOf(e.offered) {
		e.good = e.offered
	}
}

// asBase returns s as the state at the beginning of an epoch: without sessions
// and without record numbers of the epoch before.
func (s state) asBase() state {
	next := newState()
	for name, sh := range s.shards {
		to := next.shard(name)
		for k, e := range sh.entries {
			if e.offered == nil && e.good == nil {
				continue
			}
			clean := to.add(k)
			clean.origin = e.origin
			if e.offered == nil {
				clean.good = e.good // the deletion is withheld
			}
			to.setOffered(clean, e.offered)
		}
	}
	for _, o := range s.overlays {
		clean := *o
		clean.seq, clean.values = 0, maps.Clone(o.values)
		next.setOverlay(&clean)
	}
	maps.Copy(next.gone, s.gone)
	return next
}

// EpochBase returns the base of an epoch that begins after this fold's position:
// offered values, last good values and overlays, without sessions, sorted by
// key. head and content are the published head and its rows; zero and nil if
// there is none. A fold that is behind the head takes values and overlays from
// the head, as offered and good, so that no epoch loses published content.
func (f *Fold) EpochBase(head ident.Position, content iter.Seq2[string, []byte]) (iter.Seq2[string, []byte], error) {
	published := newState()
	if content != nil {
		var err error
		if published, err = parseContent(content); err != nil {
			return nil, err
		}
	}
	from := f.state
	if f.Position().Less(head) {
		from = published
	}
	base := from.asBase()
	for _, sh := range base.shards {
		for k, e := range sh.entries {
			e.good = from.entry(k).good
			if p := published.entry(k); e.good == nil && p != nil {
				e.good = p.good
			}
		}
	}
	for _, s := range []state{f.state, published} {
		for name := range s.shards {
			base.shard(name)
		}
	}
	maps.Copy(base.gone, f.gone)
	return base.rows().sorted(), nil
}

// BuildBase returns the base with which another build takes over within an
// epoch: the values of the published head's content as last good values and, if there
// are pins or rollouts, its overlays, sorted by key.
func BuildBase(content iter.Seq2[string, []byte]) (iter.Seq2[string, []byte], error) {
	published, err := parseContent(content)
	if err != nil {
		return nil, err
	}
	rows := encoders{}
	for _, sh := range published.shards {
		for _, e := range sh.entries {
			clean := entry{good: e.good}
			rows[keyRow(e.row)] = clean.bytes
		}
	}
	for id := range published.overlays {
		if len(published.pins) == 0 && len(published.rollouts) == 0 {
			break // nothing else is read of them
		}
		rows[overlayRow(id)] = func() []byte { return published.overlayBytes(id) }
	}
	return rows.sorted(), nil
}

// parseContent returns the state in which every value of content is offered and
// good.
func parseContent(content iter.Seq2[string, []byte]) (state, error) {
	s := newState()
	for row, b := range content {
		k, id, err := ident.ParseRow(row)
		if err != nil {
			return state{}, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		if id != "" {
			o, err := world.UnmarshalOverlay(id, b)
			if err != nil {
				return state{}, fmt.Errorf("%w: %w", ErrCorrupt, err)
			}
			s.setOverlay(newOverlay(o, 0))
			continue
		}
		v, err := world.UnmarshalValue(b)
		if err != nil {
			return state{}, fmt.Errorf("%w: %s: %w", ErrCorrupt, row, err)
		}
		sh := s.shard(k.Shard())
		e := sh.add(k)
		sh.setOffered(e, newValue(k, v))
		e.good = e.offered
	}
	return s, nil
}
