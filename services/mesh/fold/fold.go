package fold

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
)

// Errors of Apply, Restore and of the makers of bases, to be tested with
// errors.Is. The fold is unchanged after any of them.
var (
	// ErrOrder: the record is not the one after the last.
	ErrOrder = errors.New("record out of order")
	// ErrNeedsBase: NeedsBase names a base and none was given.
	ErrNeedsBase = errors.New("the segment's base is missing")
	// ErrCorrupt: rows are not what a fold writes.
	ErrCorrupt = errors.New("not rows of a fold")
	// ErrOtherBuild: the checkpoint was made by another build; it is no
	// ground to go on from.
	ErrOtherBuild = errors.New("the checkpoint was made by another build")
)

// Need is a shard of which the fold wants a new listing.
type Need struct {
	Shard ident.Shard
	// Session that is to end; empty: whichever there is.
	Session string
	Reason  string
}

// Counts are for people and metrics.
type Counts struct {
	Keys      int    // offered
	Overlays  int    // that still lie over something
	Strangers uint64 // records of other sessions than the one begun last, in this epoch
	Undecoded uint64 // records that could not be decoded, in this epoch
}

// New returns the fold of the empty log.
func New(build string, j Judge) *Fold {
	f := &Fold{build: build, judge: j, variant: variantOf(j), state: newState()}
	f.unsaved.rewrite()
	return f
}

// Restore returns the fold whose Rows are given, in any order. It goes on
// exactly as the fold that wrote them; its first Checkpoint holds what changed
// since (after Rewrite: everything). Without rows it is New.
func Restore(build string, j Judge, rows iter.Seq2[string, []byte]) (*Fold, error) {
	f := New(build, j)
	var meta *snapshotv1.FoldMeta
	empty := true
	s, err := f.parse(func(yield func(string, []byte) bool) {
		for key, b := range rows {
			empty = false
			if key == metaRow {
				var r snapshotv1.FoldRow
				if proto.Unmarshal(b, &r) == nil {
					meta = r.GetMeta()
				}
			}
			if !yield(key, b) {
				return
			}
		}
	})
	switch {
	case err != nil:
		return nil, err
	case empty:
		return f, nil
	case meta == nil:
		return nil, fmt.Errorf("%w: the row of the position is missing", ErrCorrupt)
	case meta.GetBuild() != build:
		return nil, fmt.Errorf("%w: by %s, this is %s", ErrOtherBuild, meta.GetBuild(), build)
	case len(meta.GetRecordHash()) != len(f.recordHash):
		return nil, fmt.Errorf("%w: the hash of the record has %d bytes", ErrCorrupt, len(meta.GetRecordHash()))
	}
	f.state = s
	f.seq = meta.GetPosition().GetSeq()
	f.recordHash = ident.Hash(meta.GetRecordHash())
	if meta.GetRecordTime() != nil {
		f.recordTime = meta.GetRecordTime().AsTime()
	}
	f.segment = Segment{
		Epoch:       meta.GetPosition().GetEpoch(),
		Build:       meta.GetSegmentBuild(),
		Head:        ident.Position{Epoch: meta.GetSegmentHead().GetEpoch(), Seq: meta.GetSegmentHead().GetSeq()},
		VersionsSeq: meta.GetSegmentVersionsSeq(),
		EpochRecord: meta.GetEpochRecord(),
	}
	f.unsaved.forget()
	return f, nil
}

// NeedsBase says which base, if any, Apply must be given with rec.
func (f *Fold) NeedsBase(rec events.Record) (ident.Hash, bool) {
	if g, ok := rec.Event.Body.(*events.Segment); ok && f.valid(g) {
		return g.Base, !g.Base.IsZero()
	}
	return ident.Hash{}, false
}

// Apply takes the next record, and says what it changed and what is wrong
// with it. base are the rows of the base that NeedsBase named, else nil.
//
// Records come densely in the order of Seq. Only a segment that begins a
// greater epoch may come from anywhere: what was before it does not count.
func (f *Fold) Apply(rec events.Record, base iter.Seq2[string, []byte]) (world.Change, []problem.Diagnostic, error) {
	if rec.Seq != f.seq+1 && !f.beginsEpoch(rec) {
		return world.Change{}, nil, fmt.Errorf("%w: %d after %d", ErrOrder, rec.Seq, f.seq)
	}
	if h, needs := f.NeedsBase(rec); !needs {
		base = nil
	} else if base == nil {
		return world.Change{}, nil, fmt.Errorf("%w: record %d names %s", ErrNeedsBase, rec.Seq, h)
	}
	s := &step{Fold: f, seq: rec.Seq}
	g, isSegment := rec.Event.Body.(*events.Segment)
	switch {
	case rec.Err != nil:
		f.undecoded++
		s.warn("undecoded", fmt.Sprintf("record %d: %v", rec.Seq, rec.Err), "", "the record changes nothing")
	case isSegment && f.valid(g):
		if err := s.segmentRecord(g, base); err != nil {
			return world.Change{}, nil, err
		}
	case isSegment:
		s.warn("segment-void", fmt.Sprintf("record %d: a segment of epoch %d within epoch %d", rec.Seq, g.Epoch, f.segment.Epoch),
			"", "the record changes nothing")
	default:
		s.event(rec.Event)
	}
	f.seq, f.recordHash, f.recordTime = rec.Seq, rec.Hash, rec.Time
	return s.finish(), s.problems, nil
}

// Position is the last record that the fold contains.
func (f *Fold) Position() ident.Position {
	return ident.Position{Epoch: f.segment.Epoch, Seq: f.seq}
}

// RecordHash is the hash of that record, with the server's time.
func (f *Fold) RecordHash() ident.Hash { return f.recordHash }

// RecordTime is the server's time of that record.
func (f *Fold) RecordTime() time.Time { return f.recordTime }

// Segment is where the fold stands; zero before the first segment.
func (f *Fold) Segment() Segment { return f.segment }

// Mine says whether the segment is of the fold's own build: else its owner
// must not publish.
func (f *Fold) Mine() bool { return f.segment.Build == f.build }

// Waiting says, for people, which required sources keep versions from being
// published. It is empty when the fold is ready. Where the policy requires
// none, one source at least must have listed.
func (f *Fold) Waiting(p world.Policy) []string {
	var waiting []string
	listed := func(sh *shard) bool { return f.variant.listed(sh, true) }
	if len(p.Required) == 0 && !slices.ContainsFunc(f.inOrder(), listed) {
		waiting = append(waiting, fmt.Sprintf("no source has listed anything in epoch %d", f.segment.Epoch))
	}
	for _, r := range p.Required {
		switch sh := f.shards[r.Shard]; {
		case !listed(sh):
			waiting = append(waiting, fmt.Sprintf("%s has listed nothing in epoch %d", r.Shard, f.segment.Epoch))
		case !f.variant.listed(sh, r.AcceptPartial):
			waiting = append(waiting, fmt.Sprintf("%s could list only a part, and the MeshPolicy does not accept that", r.Shard))
		}
	}
	return waiting
}

// FirstListings says, for people, which sources have begun to list for the
// first time in this epoch.
func (f *Fold) FirstListings() (listing []string) {
	for _, sh := range f.inOrder() {
		if sh.listing && !f.variant.listed(sh, true) {
			listing = append(listing, fmt.Sprintf("%s is listing", sh.name))
		}
	}
	return listing
}

// inOrder is the shards, sorted.
func (f *Fold) inOrder() []*shard {
	return slices.SortedFunc(maps.Values(f.shards), func(a, b *shard) int {
		return cmp.Or(cmp.Compare(a.name.Source, b.name.Source), cmp.Compare(a.name.Instance, b.name.Instance))
	})
}

// Needs are the shards that must list again, sorted.
func (f *Fold) Needs() []Need {
	var needs []Need
	for _, sh := range f.inOrder() {
		if sh.need != "" {
			needs = append(needs, Need{Shard: sh.name, Session: sh.session, Reason: sh.need})
		}
	}
	return needs
}

// Digests are those of the shard's offered keys of these kinds, for the watcher
// that began the session; false unless that is the one begun last.
func (f *Fold) Digests(name ident.Shard, session string, kinds events.Kinds) (*events.ShardDigests, bool) {
	sh := f.shards[name]
	if sh == nil || session == "" || sh.session != session {
		return nil, false
	}
	digests := sh.digestsOf(f.variant.compared(kinds))
	return &digests, true
}

// Watermark is how far each shard is contained, sorted.
func (f *Fold) Watermark() []*snapshotv1.Watermark {
	var marks []*snapshotv1.Watermark
	for _, sh := range f.inOrder() {
		marks = append(marks, &snapshotv1.Watermark{
			Source: sh.name.Source, Instance: sh.name.Instance, Seq: sh.seq, Synced: sh.synced, Partial: sh.partial,
		})
	}
	return marks
}

// Diagnostics are what is wrong with what is offered now, sorted.
func (f *Fold) Diagnostics() []problem.Diagnostic {
	var all []problem.Diagnostic
	for _, e := range f.troubled {
		all = append(all, e.diagnostics()...)
	}
	slices.SortFunc(all, problem.Diagnostic.Compare)
	return all
}

// Counts counts.
func (f *Fold) Counts() Counts {
	c := Counts{Overlays: len(f.overlays), Undecoded: f.undecoded}
	for _, sh := range f.shards {
		c.Keys += len(sh.entries) - len(sh.buried)
		c.Strangers += sh.strangers
	}
	return c
}

// Offered is the content hash of what the source offers for k, good or not.
func (f *Fold) Offered(k ident.Key) (ident.Hash, bool) {
	h := f.offeredHash(k)
	return h, !h.IsZero()
}

// Held says whether a hold lies over k.
func (f *Fold) Held(k ident.Key) bool {
	return slices.ContainsFunc(f.over[k], func(o *overlay) bool { return o.Kind == ident.Hold })
}

// Listing says whether a session of the shard lists: what it says waits for the
// end of the listing.
func (f *Fold) Listing(name ident.Shard) bool {
	sh := f.shards[name]
	return sh != nil && sh.listing
}

// CountKeys is how many keys the shard offers.
func (f *Fold) CountKeys(name ident.Shard) int {
	sh := f.shards[name]
	if sh == nil {
		return 0
	}
	return len(sh.entries) - len(sh.buried)
}

// Content returns the last good values and the overlays, as a change that
// replaces everything; sorted by row.
func (f *Fold) Content() world.Change {
	c := world.Change{Reset: true}
	for id, o := range f.overlays {
		c.Rows = append(c.Rows, o.change(id, 0))
	}
	for _, sh := range f.shards {
		for _, e := range sh.entries {
			if e.good != nil {
				c.Rows = append(c.Rows, e.change(e.goodSeq))
			}
		}
	}
	slices.SortFunc(c.Rows, func(a, b world.RowChange) int { return strings.Compare(a.Row, b.Row) })
	return c
}
