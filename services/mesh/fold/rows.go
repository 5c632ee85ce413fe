package fold

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
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

// parseRow returns the key in a row with that prefix.
func parseRow(row, prefix string) (ident.Key, bool) {
	rest, ok := strings.CutPrefix(row, prefix)
	k, _, err := ident.ParseRow(ident.ValuePrefix + rest)
	return k, ok && err == nil
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
		Refused:            f.refused,
		LastRefused:        f.lastRefused,
	}
	m.EpochId = f.segment.ID
	f.save(m)
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

func (e *entry) bytes() []byte {
	return marshalRow(&snapshotv1.FoldRow{Row: &snapshotv1.FoldRow_Key{Key: e.proto()}})
}

func (sh *shard) bytes() []byte {
	sh.Seen = slices.Sorted(maps.Keys(sh.arrived))
	row := marshalRow(&snapshotv1.FoldRow{Row: &snapshotv1.FoldRow_Shard{Shard: sh.FoldShard}})
	sh.Seen = nil // only the row has it
	return row
}

// bytes returns the row of a staged record; nil if it is no longer staged.
func (r *staged) bytes() []byte {
	if r == nil {
		return nil
	}
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
	return marshalRow(&snapshotv1.FoldRow{Row: &snapshotv1.FoldRow_Overlay{Overlay: p}})
}

// parse reads the state in rows, and the row of the position, if there is one.
func parse(rows iter.Seq2[string, []byte]) (state, *snapshotv1.FoldMeta, error) {
	s := newState()
	var meta *snapshotv1.FoldMeta
	var waiting []staged
	for key, b := range rows {
		var r snapshotv1.FoldRow
		err := proto.Unmarshal(b, &r)
		if err == nil {
			switch p := r.GetRow().(type) {
			case *snapshotv1.FoldRow_Meta:
				meta = p.Meta
			case *snapshotv1.FoldRow_Key:
				err = s.parseKey(key, p.Key)
			case *snapshotv1.FoldRow_Shard:
				err = s.parseShard(key, p.Shard)
			case *snapshotv1.FoldRow_Staged:
				var e events.Event
				e, err = events.Decode(p.Staged.GetEvent())
				switch e.Body.(type) {
				case *events.Object:
					waiting = append(waiting, newStaged(p.Staged.GetSeq(), e))
				case *events.Overlay:
					s.acts = append(s.acts, staged{seq: p.Staged.GetSeq(), event: e})
				case nil:
				default:
					err = errors.New("only objects and overlays wait")
				}
			case *snapshotv1.FoldRow_Overlay:
				err = s.parseOverlay(key, p.Overlay)
			default:
				err = errors.New("a row of no kind that this build knows")
			}
		}
		if err != nil {
			return state{}, nil, fmt.Errorf("%w: row %q: %w", ErrCorrupt, key, err)
		}
	}
	slices.SortFunc(waiting, bySeq)
	slices.SortFunc(s.acts, bySeq)
	for _, r := range waiting {
		s.shard(r.object().Key.Shard()).restoreStaged(r)
	}
	return s, meta, nil
}

func bySeq(a, b staged) int { return cmp.Compare(a.seq, b.seq) }

func (sh *shard) restoreStaged(r staged) {
	sh.staged = append(sh.staged, r)
	if sh.Listing {
		return
	}
	if sh.indexes == nil {
		sh.indexes = map[uint32]struct{}{}
	}
	sh.indexes[r.object().Batch.Index] = struct{}{}
}

func (s *state) parseKey(row string, p *snapshotv1.FoldKey) error {
	k, ok := parseRow(row, "k/")
	if !ok {
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
	k, ok := parseRow(row, "s/")
	if !ok {
		return fmt.Errorf("its key names no shard")
	}
	sh := s.shard(k.Shard())
	sh.FoldShard, sh.arrived = p, make(map[uint64]struct{}, len(p.GetSeen()))
	for _, n := range p.GetSeen() {
		sh.arrived[n] = struct{}{}
	}
	sh.Seen = nil
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
