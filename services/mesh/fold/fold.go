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

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
)

// Errors of Apply, Restore, EpochBase and BuildBase, for errors.Is. The fold is
// unchanged after any of them.
var (
	// ErrOrder: the record does not follow the last one.
	ErrOrder = errors.New("record out of order")
	// ErrNeedsBase: NeedsBase names a base and Apply got none.
	ErrNeedsBase = errors.New("the segment's base is missing")
	// ErrCorrupt: rows are not what a fold writes.
	ErrCorrupt = errors.New("not rows of a fold")
	// ErrOtherBuild: another build wrote the checkpoint, so this one cannot
	// continue from it.
	ErrOtherBuild = errors.New("the checkpoint was made by another build")
)

// Need asks a shard for a new listing.
type Need struct {
	Shard ident.Shard
	// Session is the one to end; empty: any.
	Session string
	Reason  string
}

// Counts are figures for people and metrics.
type Counts struct {
	Keys      int    // offered
	Overlays  int    // that still cover a key or a resource
	Strangers uint64 // records of a session that is not the shard's last, in this epoch
	Undecoded uint64 // records that could not be decoded, in this epoch
	Refused   uint64 // records with events.ErrRefused, in this epoch
}

// New returns the fold of the empty log.
func New(build string, j Judge) *Fold {
	f := &Fold{build: build, judge: j, variant: variantOf(j), state: newState()}
	f.rules = f.policyRules(&f.state)
	f.unsaved.rewrite()
	return f
}

// Restore returns the fold that wrote rows, which come in any order. Its first
// Checkpoint holds the changes since then (after Rewrite: everything). Without
// rows it returns New.
func Restore(build string, j Judge, rows iter.Seq2[string, []byte]) (*Fold, error) {
	f := New(build, j)
	s, meta, err := parse(rows)
	switch {
	case err != nil:
		return nil, err
	case meta == nil && len(s.shards)+len(s.overlays)+len(s.gone) == 0:
		return f, nil
	case meta == nil:
		return nil, fmt.Errorf("%w: the row of the position is missing", ErrCorrupt)
	case meta.GetBuild() != build:
		return nil, fmt.Errorf("%w: by %s, this is %s", ErrOtherBuild, meta.GetBuild(), build)
	case len(meta.GetRecordHash()) != len(f.recordHash):
		return nil, fmt.Errorf("%w: the hash of the record has %d bytes", ErrCorrupt, len(meta.GetRecordHash()))
	}
	f.state = s
	f.undecoded, f.refused, f.lastRefused = meta.GetUndecoded(), meta.GetRefused(), meta.GetLastRefused()
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
		ID:          meta.GetEpochId(),
	}
	if err := f.restore(meta); err != nil {
		return nil, err
	}
	f.rules = f.policyRules(&f.state)
	f.withholdAnew()
	f.unsaved.forget()
	return f, nil
}

// NeedsBase returns the base, if any, that Apply needs with rec.
func (f *Fold) NeedsBase(rec events.Record) (ident.Hash, bool) {
	if g, ok := rec.Event.Body.(*events.Segment); ok && f.valid(g) {
		return g.Base, !g.Base.IsZero()
	}
	return ident.Hash{}, false
}

// Apply applies the next record and returns what it changed and its problems.
// base yields the rows of the base that NeedsBase named, else it is nil.
//
// Records come in the order of Seq without a gap. Only a segment that begins a
// greater epoch may have any Seq: no record before it counts.
func (f *Fold) Apply(rec events.Record, base iter.Seq2[string, []byte]) (world.Change, []problem.Diagnostic, error) {
	if rec.Seq != f.seq+1 && !f.beginsEpoch(rec) {
		return world.Change{}, nil, fmt.Errorf("%w: %d after %d", ErrOrder, rec.Seq, f.seq)
	}
	if h, needs := f.NeedsBase(rec); !needs {
		base = nil
	} else if base == nil {
		return world.Change{}, nil, fmt.Errorf("%w: record %d names %s", ErrNeedsBase, rec.Seq, h)
	}
	s := &step{Fold: f, seq: rec.Seq, at: rec.Time}
	f.verdict = Verdict{}
	g, isSegment := rec.Event.Body.(*events.Segment)
	switch {
	case errors.Is(rec.Err, events.ErrRefused):
		f.refused++
		f.lastRefused = rec.Seq
		s.warn("refused", fmt.Sprintf("record %d is %v", rec.Seq, rec.Err), refusedAdvice, "the record changes nothing")
	case rec.Err != nil:
		f.undecoded++
		s.warn("undecoded", fmt.Sprintf("record %d: %v", rec.Seq, rec.Err), "", "the record changes nothing")
	case isSegment && f.valid(g):
		if err := s.segmentRecord(rec.Event.ID, g, base); err != nil {
			return world.Change{}, nil, err
		}
	case isSegment:
		s.warn("segment-void", fmt.Sprintf("record %d: a segment of epoch %d within epoch %d", rec.Seq, g.Epoch, f.segment.Epoch),
			"", "the record changes nothing")
	default:
		if e, ok := s.verify(rec.Event); ok {
			s.event(e)
		}
	}
	f.seq, f.recordHash, f.recordTime = rec.Seq, rec.Hash, rec.Time
	return s.finish(), s.problems, nil
}

// Position returns the position of the last record applied.
func (f *Fold) Position() ident.Position {
	return ident.Position{Epoch: f.segment.Epoch, Seq: f.seq}
}

// RecordHash returns the hash of that record, which covers the server's time.
func (f *Fold) RecordHash() ident.Hash { return f.recordHash }

// RecordTime returns the server's time of that record.
func (f *Fold) RecordTime() time.Time { return f.recordTime }

// Segment returns the segment of the last record; zero before the first one.
func (f *Fold) Segment() Segment { return f.segment }

// Mine reports whether the fold's own build wrote the segment: otherwise the
// builder must not publish.
func (f *Fold) Mine() bool { return f.segment.Build == f.build }

// Waiting returns, in words, the required sources without which no version may
// be published. It is empty when the fold is ready. If the policy requires no
// source, one at least must have listed.
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

// FirstListings returns, in words, the sources that are listing for the first
// time in this epoch. An apply that was interrupted is none: no process goes on
// with it (API-1).
func (f *Fold) FirstListings() (listing []string) {
	for _, sh := range f.inOrder() {
		if sh.Listing && !f.variant.listed(sh, true) && sh.name.Source != ident.API {
			listing = append(listing, fmt.Sprintf("%s is listing", sh.name))
		}
	}
	return listing
}

// inOrder returns the shards, sorted.
func (f *Fold) inOrder() []*shard {
	return slices.SortedFunc(maps.Values(f.shards), func(a, b *shard) int {
		return cmp.Or(cmp.Compare(a.name.Source, b.name.Source), cmp.Compare(a.name.Instance, b.name.Instance))
	})
}

// Needs returns the shards that must list again, sorted. Those of ident.API have
// no watcher that could.
func (f *Fold) Needs() []Need {
	var needs []Need
	for _, sh := range f.inOrder() {
		if sh.Need != "" && sh.name.Source != ident.API {
			needs = append(needs, Need{Shard: sh.name, Session: sh.Session, Reason: sh.Need})
		}
	}
	return needs
}

// Digests returns the digests of the keys of these kinds that the shard offers;
// false unless session is the shard's last.
func (f *Fold) Digests(name ident.Shard, session string, kinds events.Kinds) (*events.ShardDigests, bool) {
	sh := f.shards[name]
	if sh == nil || session == "" || sh.Session != session {
		return nil, false
	}
	digests := sh.digestsOf(f.variant.compared(kinds))
	return &digests, true
}

// Watermark returns the last record of each shard that counted, sorted.
func (f *Fold) Watermark() []*snapshotv1.Watermark {
	var marks []*snapshotv1.Watermark
	for _, sh := range f.inOrder() {
		marks = append(marks, &snapshotv1.Watermark{
			Source: sh.name.Source, Instance: sh.name.Instance, Seq: sh.Seq, Synced: sh.Synced, Partial: sh.Partial,
		})
	}
	return marks
}

// refusedAdvice is the advice of the Diagnostic about refused records.
const refusedAdvice = "a key that may publish under the record's subject is in wrong hands, or its permissions are too wide: `meshlog log` shows the subject; replace the key"

// Diagnostics returns the problems of the offered values, and one about the records
// of the epoch that are refused, sorted.
func (f *Fold) Diagnostics() []problem.Diagnostic {
	var all []problem.Diagnostic
	if f.refused > 0 {
		all = append(all, problem.Diagnostic{
			Severity: problem.Warning, Code: "refused", Advice: refusedAdvice, Effect: "these records change nothing",
			Reason: fmt.Sprintf("records refused in epoch %d: %d, the last one is %d; no publisher of meshlog appends such records", f.segment.Epoch, f.refused, f.lastRefused),
		})
	}
	all = append(all, f.voided()...)
	for _, e := range f.troubled {
		all = append(all, e.diagnostics()...)
	}
	all = append(all, f.Withheld(func(ident.Key) bool { return true })...)
	all = append(all, f.stoppages()...)
	slices.SortFunc(all, problem.Diagnostic.Compare)
	return all
}

// Counts returns the fold's figures.
func (f *Fold) Counts() Counts {
	c := Counts{Overlays: len(f.overlays), Undecoded: f.undecoded, Refused: f.refused}
	for _, sh := range f.shards {
		c.Keys += sh.keys()
		c.Strangers += sh.Strangers
	}
	return c
}

// Offered returns the content hash of the value that the source offers for k,
// good or not.
func (f *Fold) Offered(k ident.Key) (ident.Hash, bool) {
	h := f.offeredHash(k)
	return h, !h.IsZero()
}

// Offer is a value that a source offers, good or not.
type Offer struct {
	Key    ident.Key
	Value  ident.Value
	Hash   ident.Hash // of the content
	Seq    uint64     // the last record of the key; 0 if it is of an earlier epoch
	Origin string
	// Good: the value is served, unless an overlay lies over it.
	Good     bool
	Problems []problem.Diagnostic
}

// Offers returns what a shard offers, sorted by row.
func (f *Fold) Offers(name ident.Shard) []Offer {
	sh := f.shards[name]
	if sh == nil {
		return nil
	}
	var offers []Offer
	for _, e := range slices.SortedFunc(maps.Values(sh.entries), func(a, b *entry) int { return strings.Compare(a.row, b.row) }) {
		if e.offered != nil {
			offers = append(offers, Offer{
				Key: e.key, Value: e.offered.Value, Hash: e.offered.hash, Seq: e.seq, Origin: e.origin,
				Good: e.good == e.offered, Problems: e.diagnostics(),
			})
		}
	}
	return offers
}

// Held reports whether a hold covers k.
func (f *Fold) Held(k ident.Key) bool {
	return slices.ContainsFunc(f.over[k], func(o *overlay) bool { return o.Kind == ident.Hold })
}

// Listing reports whether a session of the shard is listing: its records wait
// for the end of the listing.
func (f *Fold) Listing(name ident.Shard) bool {
	sh := f.shards[name]
	return sh != nil && sh.Listing
}

// CountKeys returns how many keys the shard offers.
func (f *Fold) CountKeys(name ident.Shard) int {
	if sh := f.shards[name]; sh != nil {
		return sh.keys()
	}
	return 0
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
