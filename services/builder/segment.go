package builder

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/failpoint"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/store"
)

// rewound says why the log is not the one that the fold and the head of the
// chain were made from; empty if it is.
func (m *Machine) rewound(ctx context.Context) (string, error) {
	bounds, err := m.cfg.Log.Bounds(ctx)
	if err != nil {
		return "", fmt.Errorf("bounds of the log: %w", err)
	}
	at := m.fold.Position().Seq
	switch {
	case m.anyBaseLost():
		return "what a segment of it stands on is lost", nil
	case at > bounds.Last:
		return fmt.Sprintf("it ends at %d, read was up to %d", bounds.Last, at), nil
	case at+1 < bounds.First:
		return fmt.Sprintf("it starts at %d, read was up to %d", bounds.First, at), nil
	case at >= bounds.First:
		rec, err := m.cfg.Log.Get(ctx, at)
		if err != nil {
			return "", fmt.Errorf("record %d of the log: %w", at, err)
		}
		if rec.Hash != m.fold.RecordHash() {
			return fmt.Sprintf("record %d is another than the one that was read", at), nil
		}
	}
	return m.headUnknown(ctx, bounds)
}

// skipExpired goes on from a fold checkpoint of this build where the log no
// longer has the records behind the fold. Without one the log counts as lost.
func (m *Machine) skipExpired(ctx context.Context) error {
	bounds, err := m.cfg.Log.Bounds(ctx)
	if err != nil {
		return fmt.Errorf("bounds of the log: %w", err)
	}
	if m.fold.Position().Seq+1 >= bounds.First {
		return nil
	}
	for man, err := range m.cfg.Feed.History(ctx) {
		if err != nil {
			return fmt.Errorf("look for a checkpoint of the fold: %w", err)
		}
		at := store.VersionOf(man.GetFoldCheckpoint().GetVersion())
		if man.GetBuild() != m.cfg.Build || at.IsZero() || at.Seq+1 < bounds.First {
			continue
		}
		rows, err := store.ReadRows(ctx, m.cfg.Feed, man.GetFoldCheckpoint())
		if err != nil {
			return fmt.Errorf("checkpoint of the fold at %s: %w", at, err)
		}
		f, err := fold.Restore(m.cfg.Build, m.cfg.Judge, rowSeq(rows))
		if err != nil {
			return fmt.Errorf("checkpoint of the fold at %s: %w", at, err)
		}
		m.log.Info("the log starts behind the fold, a checkpoint serves", "first", bounds.First, "checkpoint", f.Position())
		f.Rewrite()
		m.fold = f
		m.reset(f.Content())
		return nil
	}
	return nil
}

// skipBaseless goes on in the newest epoch where what was missing is what an
// earlier one stands on: nobody needs to look for that.
func (m *Machine) skipBaseless(ctx context.Context) error {
	if len(m.baseless) == 0 {
		return nil
	}
	seg, rec, err := m.newestEpoch(ctx)
	if err != nil || rec.Seq == 0 {
		return err
	}
	if _, missing := m.baseless[seg.Base]; missing {
		return nil
	}
	_, err = m.resume(ctx)
	return err
}

// headUnknown says why the head of the chain cannot come from this log. A head
// of an earlier epoch than the log's newest is explained by that epoch.
func (m *Machine) headUnknown(ctx context.Context, bounds events.Bounds) (string, error) {
	head := m.head.Version()
	if head.IsZero() || head.Seq < bounds.First {
		return "", nil
	}
	if head.Seq <= bounds.Last {
		rec, err := m.cfg.Log.Get(ctx, head.Seq)
		if err != nil {
			return "", fmt.Errorf("record %d of the log: %w", head.Seq, err)
		}
		if want, err := store.HashFrom(m.head.Manifest.GetRecordHash()); err == nil && rec.Hash == want {
			return "", nil
		}
	}
	seg, _, err := m.newestEpoch(ctx)
	if err != nil {
		return "", err
	}
	if seg != nil && seg.Epoch > head.Epoch {
		return "", nil
	}
	return fmt.Sprintf("it does not hold the record of the head %s", head), nil
}

// newestEpoch finds the segment record that began the newest epoch of the log;
// nil if there is none. Where that record has expired, and a later segment of
// the epoch has not, it returns that one's segment and no record: nobody can
// resume there. Nor where what the record stands on is lost.
func (m *Machine) newestEpoch(ctx context.Context) (*events.Segment, events.Record, error) {
	rec, err := m.cfg.Log.Last(ctx, events.SegmentSubject)
	if errors.Is(err, events.ErrNotFound) {
		return nil, events.Record{}, nil
	}
	if err != nil {
		return nil, rec, fmt.Errorf("last segment of the log: %w", err)
	}
	seg, ok := rec.Event.Body.(*events.Segment)
	if ok && seg.EpochRecord != 0 {
		rec, err = m.cfg.Log.Get(ctx, seg.EpochRecord)
		if errors.Is(err, events.ErrNotFound) {
			return seg, events.Record{}, nil
		}
		if err != nil {
			return nil, rec, fmt.Errorf("record %d, which began epoch %d: %w", seg.EpochRecord, seg.Epoch, err)
		}
		seg, ok = rec.Event.Body.(*events.Segment)
	}
	if !ok {
		return nil, rec, fmt.Errorf("record %d lies under %s and is no segment: %w", rec.Seq, events.SegmentSubject, errors.Join(rec.Err))
	}
	if m.baseLost(seg.Base) {
		return seg, events.Record{}, nil
	}
	return seg, rec, nil
}

// resume goes on at the newest epoch of the log, if that is newer than the
// fold's: what was before it does not count any more.
func (m *Machine) resume(ctx context.Context) (bool, error) {
	seg, rec, err := m.newestEpoch(ctx)
	if err != nil || seg == nil || rec.Seq == 0 || seg.Epoch <= m.fold.Position().Epoch {
		return false, err
	}
	base, err := m.readBase(ctx, seg.Base)
	if err != nil {
		return false, err
	}
	change, _, err := m.fold.Apply(rec, base)
	if err != nil {
		return false, fmt.Errorf("resume at record %d: %w", rec.Seq, err)
	}
	m.ahead = nil
	clear(m.baseless)
	m.change(rec, change)
	m.ckpt.forget()
	m.log.Info("resumed", "position", m.fold.Position())
	return true, nil
}

// baseOf fetches what a segment record stands on.
func (m *Machine) baseOf(ctx context.Context, rec events.Record) (iter.Seq2[string, []byte], error) {
	h, ok := m.fold.NeedsBase(rec)
	if !ok {
		return nil, nil
	}
	return m.readBase(ctx, h)
}

// readBase fetches a base. One that nobody has is noted.
func (m *Machine) readBase(ctx context.Context, h ident.Hash) (iter.Seq2[string, []byte], error) {
	if h.IsZero() {
		return rowSeq(nil), nil
	}
	rows, err := m.fetchBase(ctx, h)
	_, noted := m.baseless[h]
	switch {
	case err == nil:
		delete(m.baseless, h)
	case (errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrCorrupt)) && !noted:
		m.baseless[h] = m.cfg.Now()
		// Who lost the one may have lost the head's content with it: both are
		// looked for from now on.
		if _, err := m.contentOfHead(ctx); err != nil {
			_ = m.unlessLost(err)
		}
	}
	return rows, err
}

// baseLost says whether a base was looked for in vain for so long that it is
// not on its way.
func (m *Machine) baseLost(h ident.Hash) bool {
	since, noted := m.baseless[h]
	return noted && m.cfg.Now().Sub(since) >= lostAfter
}

func (m *Machine) anyBaseLost() bool {
	for h := range m.baseless {
		if m.baseLost(h) {
			return true
		}
	}
	return false
}

func (m *Machine) fetchBase(ctx context.Context, h ident.Hash) (iter.Seq2[string, []byte], error) {
	b, err := m.cfg.Feed.GetBlob(ctx, h)
	if err != nil {
		return nil, fmt.Errorf("base %s of a segment: %w", h, err)
	}
	c, err := store.DecodeCheckpoint(b)
	if err != nil {
		return nil, fmt.Errorf("base %s of a segment: %w", h, err)
	}
	rows, err := store.ReadRows(ctx, m.cfg.Feed, c)
	if err != nil {
		return nil, fmt.Errorf("base %s of a segment: %w", h, err)
	}
	return rowSeq(rows), nil
}

// writeBase makes rows durable and returns their name.
func (m *Machine) writeBase(ctx context.Context, rows iter.Seq2[string, []byte]) (ident.Hash, error) {
	var all []store.Row
	for k, v := range rows {
		all = append(all, store.Row{Key: k, Value: v})
	}
	if len(all) == 0 {
		return ident.Hash{}, nil
	}
	c, err := store.WriteRows(ctx, m.cfg.Feed, all, m.fold.Position())
	if err != nil {
		return ident.Hash{}, fmt.Errorf("write the base of a segment: %w", err)
	}
	b, err := store.EncodeCheckpoint(c)
	if err != nil {
		return ident.Hash{}, fmt.Errorf("write the base of a segment: %w", err)
	}
	h, err := m.cfg.Feed.PutBlob(ctx, b)
	if err != nil {
		return ident.Hash{}, fmt.Errorf("write the base of a segment: %w", err)
	}
	return h, nil
}

// beginEpoch puts a greater epoch on the log: what counts from there is this
// fold's state or, where the fold is behind the head, the head's.
func (m *Machine) beginEpoch(ctx context.Context, reason string, readAll bool) error {
	head, err := m.contentOfHead(ctx)
	if err = m.unlessLost(err); err != nil {
		return err
	}
	rows, err := m.fold.EpochBase(m.head.Version(), contentSeq(head))
	if err != nil {
		return fmt.Errorf("base of an epoch from head %s: %w", m.head.Version(), err)
	}
	if !readAll {
		if err := m.hear(ctx); err != nil {
			return err
		}
	}
	m.log.Warn("a new epoch begins", "reason", reason, "position", m.fold.Position(), "head", m.head.Version())
	return m.segment(ctx, events.Segment{}, rows, readAll)
}

// beginSegment puts on the log that this build speaks from here on; what the
// head serves becomes last good.
func (m *Machine) beginSegment(ctx context.Context) error {
	head, err := m.contentOfHead(ctx)
	if err = m.unlessLost(err); err != nil {
		return err
	}
	rows, err := fold.BuildBase(contentSeq(head))
	if err != nil {
		return fmt.Errorf("base of a segment from head %s: %w", m.head.Version(), err)
	}
	m.log.Info("a new segment begins", "epoch", m.fold.Position().Epoch, "build", m.cfg.Build, "was", m.fold.Segment().Build)
	return m.segment(ctx, events.Segment{Epoch: m.fold.Position().Epoch, EpochRecord: m.fold.Segment().EpochRecord}, rows, true)
}

// segment appends a segment record; one without Epoch begins a greater one. The
// fence is the end of the log; who begins a segment on a log that is the one
// that was read has read it to the end, and nothing may come between. On
// another log, what operators and guards said that was not read is said again
// with the segment; sources list anew anyway.
func (m *Machine) segment(ctx context.Context, seg events.Segment, rows iter.Seq2[string, []byte], readAll bool) (err error) {
	// Durable first. A crash behind this leaves blobs that nobody names.
	if seg.Base, err = m.writeBase(ctx, rows); err != nil {
		return err
	}
	failpoint.At(failpoint.BuilderBase)
	bounds, err := m.cfg.Log.Bounds(ctx)
	if err != nil {
		return fmt.Errorf("bounds of the log: %w", err)
	}
	var again []events.Event
	switch {
	case !readAll:
		if again, err = m.heardUpTo(ctx, bounds.Last); err != nil {
			return err
		}
	case bounds.Last != m.fold.Position().Seq:
		return nil // records are on their way: read them first
	}
	if seg.Epoch == 0 {
		// After bounds: what another builder began before them is below this
		// epoch, and what it begins after them breaks the fence.
		if seg.Epoch, err = m.nextEpoch(ctx); err != nil || seg.Epoch == 0 {
			return err
		}
	}
	seg.Build, seg.Head, seg.VersionsSeq = m.cfg.Build, m.head.Version(), m.head.Seq
	ev := events.Event{ID: m.cfg.NewID(), Observed: m.cfg.Now(), Actor: m.cfg.ID, Body: &seg}
	fence := events.Fence{Kind: events.FenceLog, Seq: bounds.Last, Generation: m.logGen}
	// A crash behind this leaves a segment that counts for all; whoever leads
	// next reads it.
	_, err = m.cfg.Log.Append(ctx, append([]events.Event{ev}, again...), fence)
	if errors.Is(err, events.ErrTooLarge) && len(again) > 0 {
		// Then one after the other. A crash in between loses the rest of them.
		if _, err = m.cfg.Log.Append(ctx, []events.Event{ev}, fence); err == nil {
			err = m.cfg.Log.AppendEach(ctx, again)
		}
	}
	if errors.Is(err, events.ErrConflict) {
		m.stats.Conflicts++
		return nil // somebody wrote: read on, and see whether it is still wanted
	}
	if err != nil {
		return fmt.Errorf("append segment of epoch %d: %w", seg.Epoch, err)
	}
	failpoint.At(failpoint.BuilderSegment)
	m.stats.Segments++
	return nil
}

// nextEpoch is greater than every epoch that is known here or on the log; 0
// where the log has one by now that is newer than the fold's: it is to be gone
// on with.
func (m *Machine) nextEpoch(ctx context.Context) (uint64, error) {
	here := m.fold.Position().Epoch
	seg, rec, err := m.newestEpoch(ctx)
	if err != nil || rec.Seq != 0 && seg.Epoch > here {
		return 0, err
	}
	known := max(here, m.head.Version().Epoch, m.wantEpoch.Epoch)
	if seg != nil {
		known = max(known, seg.Epoch)
	}
	return max(known+1, uint64(m.cfg.Now().Unix())), nil
}

// lostAfter is how long the content of a head is looked for: a checkpoint may be
// on its way.
const lostAfter = 30 * time.Second

// unlessLost is err, but nil where for long nobody had the content of the head:
// then what is folded here is the best that there is.
func (m *Machine) unlessLost(err error) error {
	if !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrCorrupt) {
		return err
	}
	now := m.cfg.Now()
	if m.missing.head != m.head.Version() {
		m.missing = missing{m.head.Version(), now}
	}
	if now.Sub(m.missing.since) < lostAfter {
		return err
	}
	m.log.Error("the content of the head is lost, this builder goes on without it", "head", m.head.Version(), "error", err)
	return nil
}

// missing is a head whose content was not found, and since when.
type missing struct {
	head  ident.Position
	since time.Time
}

// contentOfHead is the content of the head, from whoever has it nearest.
func (m *Machine) contentOfHead(ctx context.Context) (*store.Snapshot, error) {
	v := m.head.Version()
	if m.head.Manifest == nil {
		return nil, nil
	}
	root := store.RootOf(m.head.Manifest)
	for _, near := range []store.Stored{m.headContent, m.stored} {
		if near.Manifest != nil && near.Snapshot.Root() == root {
			m.headContent = store.Stored{Manifest: m.head.Manifest, Snapshot: near.Snapshot}
			return near.Snapshot, nil
		}
	}
	if here := m.current(); here.Root() == root {
		m.headContent = store.Stored{Manifest: m.head.Manifest, Snapshot: here}
		return here, nil
	}
	far, err := m.cfg.Feed.Fetch(ctx, v)
	if err != nil {
		return nil, fmt.Errorf("content of head %s: %w", v, err)
	}
	m.headContent = far
	return far.Snapshot, nil
}
