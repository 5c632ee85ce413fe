package fold

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
)

// The rows of a checkpoint, and of the bases of segments:
//
//	k/<source>/<instance>/<kind>/<namespace>/<name>   a key, escaped by ident.Key.Row
//	m                                                 position, segment, counters
//	o/<id>                                            an overlay, also a removed one
//	s/<source>/<instance>///                          a shard
//	t/<seq, 16 hex digits>                            a record that waits for its change set
const metaRow = "m"

func keyRow(contentRow string) string { return "k" + strings.TrimPrefix(contentRow, "v") }
func overlayRow(id string) string     { return "o/" + id }
func stagedRow(seq uint64) string     { return fmt.Sprintf("t/%016x", seq) }

func shardRow(s ident.Shard) string {
	return "s" + strings.TrimPrefix(ident.Key{Source: s.Source, Instance: s.Instance}.Row(), "v")
}

func wrapKey(k *snapshotv1.FoldKey) *snapshotv1.FoldRow {
	return &snapshotv1.FoldRow{Row: &snapshotv1.FoldRow_Key{Key: k}}
}

func wrapShard(s *snapshotv1.FoldShard) *snapshotv1.FoldRow {
	return &snapshotv1.FoldRow{Row: &snapshotv1.FoldRow_Shard{Shard: s}}
}

func wrapOverlay(o *snapshotv1.FoldOverlay) *snapshotv1.FoldRow {
	return &snapshotv1.FoldRow{Row: &snapshotv1.FoldRow_Overlay{Overlay: o}}
}

func marshalRow(r *snapshotv1.FoldRow) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(r)
	if err != nil {
		panic(fmt.Sprintf("a row of what was decoded cannot fail to marshal: %v", err))
	}
	return b
}

func (f *Fold) metaBytes() []byte {
	m := &snapshotv1.FoldMeta{
		Position:           &snapshotv1.Version{Epoch: f.segment.Epoch, Seq: f.seq},
		Build:              f.build,
		SegmentBuild:       f.segment.Build,
		SegmentHead:        &snapshotv1.Version{Epoch: f.segment.Head.Epoch, Seq: f.segment.Head.Seq},
		SegmentVersionsSeq: f.segment.VersionsSeq,
		RecordHash:         f.recordHash[:],
		EpochRecord:        f.segment.EpochRecord,
		Undecoded:          f.undecoded,
	}
	if !f.recordTime.IsZero() {
		m.RecordTime = timestamppb.New(f.recordTime)
	}
	return marshalRow(&snapshotv1.FoldRow{Row: &snapshotv1.FoldRow_Meta{Meta: m}})
}

func (e *entry) proto() *snapshotv1.FoldKey {
	k := &snapshotv1.FoldKey{
		HasGood:     e.good != nil,
		OfferedGood: e.good != nil && e.good == e.offered,
		LastPseq:    e.lastPseq,
		Seq:         e.seq,
		Origin:      e.origin,
		GoodSeq:     e.goodSeq,
	}
	if e.offered != nil {
		k.Offered = world.ValueProto(e.offered.Value)
	}
	if k.HasGood && !k.OfferedGood {
		k.Good = world.ValueProto(e.good.Value)
	}
	for _, d := range e.problems {
		k.Diagnostics = append(k.Diagnostics, d.Proto())
	}
	return k
}

func (sh *shard) proto() *snapshotv1.FoldShard {
	p := &snapshotv1.FoldShard{
		Session: sh.session, Holder: sh.holder, BeginSeq: sh.beginSeq,
		Listing: sh.listing, Synced: sh.synced, Partial: sh.partial,
		Need: sh.need, Floor: sh.floor, Hole: sh.hole, Seq: sh.seq, Strangers: sh.strangers,
		Kinds: sh.covered,
	}
	for n := range sh.seen {
		p.Seen = append(p.Seen, n)
	}
	slices.Sort(p.Seen)
	return p
}

func (r staged) bytes() []byte {
	event, err := events.Encode(r.event)
	if err != nil {
		panic(fmt.Sprintf("an event that was decoded cannot fail to encode: %v", err))
	}
	return marshalRow(&snapshotv1.FoldRow{Row: &snapshotv1.FoldRow_Staged{
		Staged: &snapshotv1.FoldStaged{Event: event, Seq: r.seq},
	}})
}

// overlayBytes returns the row of an overlay id, or nil.
func (s *state) overlayBytes(id string) []byte {
	p := &snapshotv1.FoldOverlay{}
	_, p.Gone = s.gone[id]
	if o, ok := s.overlays[id]; ok {
		p.Overlay, p.Seq = o.full().Proto(), o.seq
	} else if !p.Gone {
		return nil
	}
	return marshalRow(wrapOverlay(p))
}

// parse reads the state in rows. It takes only the counter from the row of the
// position.
func (f *Fold) parse(rows iter.Seq2[string, []byte]) (state, error) {
	s := newState()
	waiting := []staged{}
	for key, b := range rows {
		var r snapshotv1.FoldRow
		err := proto.Unmarshal(b, &r)
		if err == nil {
			switch p := r.GetRow().(type) {
			case *snapshotv1.FoldRow_Meta:
				s.undecoded = p.Meta.GetUndecoded()
			case *snapshotv1.FoldRow_Key:
				err = s.parseKey(key, p.Key)
			case *snapshotv1.FoldRow_Shard:
				err = s.parseShard(key, p.Shard)
			case *snapshotv1.FoldRow_Staged:
				var e events.Event
				e, err = events.Decode(p.Staged.GetEvent())
				if _, ok := e.Body.(*events.Object); err == nil && !ok {
					err = fmt.Errorf("only objects wait")
				}
				if err != nil {
					break
				}
				waiting = append(waiting, newStaged(p.Staged.GetSeq(), e))
			case *snapshotv1.FoldRow_Overlay:
				err = s.parseOverlay(key, p.Overlay)
			default:
				err = fmt.Errorf("a row of no kind that this build knows")
			}
		}
		if err != nil {
			return state{}, fmt.Errorf("%w: row %q: %w", ErrCorrupt, key, err)
		}
	}
	slices.SortFunc(waiting, func(a, b staged) int {
		if a.seq < b.seq {
			return -1
		}
		return 1
	})
	for _, r := range waiting {
		s.shard(r.object().Key.Shard()).restoreStaged(r)
	}
	return s, nil
}

func (sh *shard) restoreStaged(r staged) {
	sh.staged = append(sh.staged, r)
	if sh.listing {
		return
	}
	if sh.indexes == nil {
		sh.indexes = map[uint32]struct{}{}
	}
	sh.indexes[r.object().Batch.Index] = struct{}{}
}

func (s *state) parseKey(row string, p *snapshotv1.FoldKey) error {
	rest, ok := strings.CutPrefix(row, "k/")
	k, _, err := ident.ParseRow(ident.ValuePrefix + rest)
	if !ok || err != nil {
		return fmt.Errorf("its key names no object")
	}
	sh := s.shard(k.Shard())
	e := sh.add(k)
	var offered *value
	if p.GetOffered() != nil {
		offered = newValue(k, world.ValueOf(p.GetOffered()))
	}
	sh.setOffered(e, offered)
	switch {
	case p.GetOfferedGood():
		e.good = offered
	case p.GetGood() != nil:
		e.good = newValue(k, world.ValueOf(p.GetGood()))
	}
	e.lastPseq, e.seq, e.goodSeq, e.origin = p.GetLastPseq(), p.GetSeq(), p.GetGoodSeq(), p.GetOrigin()
	for _, d := range p.GetDiagnostics() {
		e.problems = append(e.problems, problem.Diagnostic{
			Severity: problem.Severity(d.GetSeverity()), Code: d.GetCode(), Origin: d.GetOrigin(),
			Field: d.GetField(), Reason: d.GetReason(), Advice: d.GetAdvice(),
		})
	}
	if len(e.problems) > 0 {
		s.troubled[k] = e
	}
	return nil
}

func (s *state) parseShard(row string, p *snapshotv1.FoldShard) error {
	rest, ok := strings.CutPrefix(row, "s/")
	k, _, err := ident.ParseRow(ident.ValuePrefix + rest)
	if !ok || err != nil {
		return fmt.Errorf("its key names no shard")
	}
	sh := s.shard(k.Shard())
	sh.session, sh.holder, sh.beginSeq = p.GetSession(), p.GetHolder(), p.GetBeginSeq()
	sh.listing, sh.synced, sh.partial = p.GetListing(), p.GetSynced(), p.GetPartial()
	sh.need, sh.seq, sh.strangers = p.GetNeed(), p.GetSeq(), p.GetStrangers()
	sh.floor, sh.hole, sh.covered = p.GetFloor(), p.GetHole(), p.GetKinds()
	if len(p.GetSeen()) > 0 {
		sh.seen = map[uint64]struct{}{}
		for _, n := range p.GetSeen() {
			sh.seen[n] = struct{}{}
		}
	}
	return nil
}

func (s *state) parseOverlay(row string, p *snapshotv1.FoldOverlay) error {
	id, ok := strings.CutPrefix(row, "o/")
	if !ok || id == "" {
		return fmt.Errorf("its key names no overlay")
	}
	if p.GetGone() {
		s.gone[id] = struct{}{}
	}
	if p.GetOverlay() == nil {
		return nil
	}
	o, err := world.OverlayOf(id, p.GetOverlay())
	if err != nil {
		return err
	}
	s.setOverlay(newOverlay(o, p.GetSeq()))
	return nil
}
