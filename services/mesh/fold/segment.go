package fold

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
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

// segmentRecord applies a valid segment: a greater epoch replaces the state by
// the base's, another build keeps the offered values; then all offered values are
// judged again over the base's last good values.
func (s *step) segmentRecord(g *events.Segment, base iter.Seq2[string, []byte]) error {
	next := newState()
	if base != nil {
		var err error
		if next, err = s.parse(base); err != nil {
			return fmt.Errorf("base of segment %d: %w", s.seq, err)
		}
	}
	segment := Segment{Epoch: g.Epoch, Build: g.Build, Head: g.Head, VersionsSeq: g.VersionsSeq, EpochRecord: g.EpochRecord}
	if g.EpochRecord == 0 {
		segment.EpochRecord = s.seq
		s.state = next.asBase()
		for _, sh := range s.shards {
			sh.need = fmt.Sprintf("epoch %d began", g.Epoch)
		}
	}
	s.segment = segment
	s.judgeAnew(next)
	s.change = s.Content()
	s.unsaved.rewrite()
	return nil
}

// judgeAnew judges all offered values again. A key whose value is not good gets
// the last good value of base.
func (f *Fold) judgeAnew(base state) {
	clear(f.troubled)
	for _, sh := range f.shards {
		for k, e := range sh.entries {
			if e.offered == nil {
				continue
			}
			old, seq := hashOf(e.good), e.goodSeq
			e.good, e.goodSeq = f.variant.lastGood(&base, k), 0
			if f.assess(&f.state, e) {
				e.good, e.goodSeq = e.offered, e.seq
			}
			if e.good != nil && e.good.hash == old {
				e.goodSeq = seq
			}
			if hashOf(e.good) == e.offered.hash {
				e.good = e.offered
			}
		}
	}
}

// asBase returns s as the state at the beginning of an epoch: without sessions
// and without record numbers of the epoch before.
func (s state) asBase() state {
	next := newState()
	for name, sh := range s.shards {
		to := next.shard(name)
		for k, e := range sh.entries {
			if e.offered == nil {
				continue
			}
			clean := to.add(k)
			clean.origin = e.origin
			to.setOffered(clean, e.offered)
		}
	}
	for _, o := range s.overlays {
		o.seq = 0
		next.setOverlay(o)
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
	rows := map[string]*snapshotv1.FoldRow{}
	for name := range f.shards {
		rows[shardRow(name)] = wrapShard(&snapshotv1.FoldShard{})
	}
	for name := range published.shards {
		rows[shardRow(name)] = wrapShard(&snapshotv1.FoldShard{})
	}
	behind := f.Position().Less(head)
	overlays := f.overlays
	if behind {
		overlays = published.overlays
	}
	for id := range f.gone {
		rows[overlayRow(id)] = wrapOverlay(&snapshotv1.FoldOverlay{Gone: true})
	}
	for id, o := range overlays {
		_, gone := f.gone[id]
		rows[overlayRow(id)] = wrapOverlay(&snapshotv1.FoldOverlay{Gone: gone, Overlay: o.full().Proto()})
	}
	from := f.state
	if behind {
		from = published
	}
	for _, sh := range from.shards {
		for k, e := range sh.entries {
			if e.offered == nil {
				continue
			}
			clean := entry{offered: e.offered, good: e.good, origin: e.origin}
			if p := published.entry(k); clean.good == nil && p != nil {
				clean.good = p.good
			}
			rows[keyRow(e.row)] = wrapKey(clean.proto())
		}
	}
	return sorted(rows), nil
}

// BuildBase returns the base with which another build takes over within an
// epoch: the values of the published head's content as last good values, sorted
// by key.
func BuildBase(content iter.Seq2[string, []byte]) (iter.Seq2[string, []byte], error) {
	published, err := parseContent(content)
	if err != nil {
		return nil, err
	}
	rows := map[string]*snapshotv1.FoldRow{}
	for _, sh := range published.shards {
		for _, e := range sh.entries {
			clean := entry{good: e.good}
			rows[keyRow(e.row)] = wrapKey(clean.proto())
		}
	}
	return sorted(rows), nil
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

func sorted(rows map[string]*snapshotv1.FoldRow) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for _, key := range slices.SortedFunc(maps.Keys(rows), strings.Compare) {
			if !yield(key, marshalRow(rows[key])) {
				return
			}
		}
	}
}
