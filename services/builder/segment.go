package builder

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/builder/ledger"
	"meshlog.dev/services/internal/failpoint"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/store"
)

// epochs finds out whether the log is the one that was read, resumes in a newer
// epoch if it is not, and begins segments and epochs. What it appends to the log
// is fenced.
type epochs struct {
	cfg    *Config
	stats  *stats
	ledger *ledger.Ledger
	chain  *chain
	gen    uint64 // the connection in which the log was compared

	claims   claims                   // frontends report newer versions than the head: begin an epoch above them
	blobless uint64                   // the bus has lost the blobs of this epoch
	baseless map[ident.Hash]time.Time // bases of segments that are not found, and since when
	missed   missed
	owed     owed
}

// connect compares the ledger and the head with the log, until they agree.
func (e *epochs) connect(ctx context.Context, leader bool) error {
	if err := e.skipExpired(ctx); err != nil {
		return err
	}
	if err := e.skipBaseless(ctx); err != nil {
		return err
	}
	for {
		if e.owes() {
			if err := e.payOwed(ctx); err != nil {
				return err
			}
		}
		reason, err := e.rewound(ctx)
		if err != nil || reason == "" {
			return err
		}
		e.stats.Recovered++
		e.cfg.Logger.Warn("the log is not the one that was read", "reason", reason, "position", e.ledger.Position(), "head", e.chain.head.Version())
		if err := e.recover(ctx, reason, leader); err != nil {
			return err
		}
	}
}

// recover resumes in the newest epoch of the log. If none is newer than the
// ledger's, the leader begins one.
func (e *epochs) recover(ctx context.Context, reason string, leader bool) error {
	if resumed, err := e.resume(ctx); err != nil || resumed {
		return err
	}
	if !leader {
		return ErrWait
	}
	if err := e.beginEpoch(ctx, reason, false); err != nil {
		return err
	}
	resumed, err := e.resume(ctx)
	if err == nil && !resumed {
		err = ErrWait
	}
	return err
}

// rewound returns why the log is not the one from which the ledger and the head
// were made, or "" if it is.
func (e *epochs) rewound(ctx context.Context) (string, error) {
	bounds, err := e.bounds(ctx)
	if err != nil {
		return "", err
	}
	at := e.ledger.Position().Seq
	switch {
	case e.anyBaseLost():
		return "the base of a segment is lost", nil
	case at > bounds.Last:
		return fmt.Sprintf("it ends at %d, read was up to %d", bounds.Last, at), nil
	case at+1 < bounds.First:
		return fmt.Sprintf("it starts at %d, read was up to %d", bounds.First, at), nil
	case at >= bounds.First:
		rec, err := e.get(ctx, at)
		if err != nil {
			return "", err
		}
		if rec.Hash != e.ledger.Fold().RecordHash() {
			return fmt.Sprintf("record %d differs from the one that was read", at), nil
		}
	}
	return e.headUnknown(ctx, bounds)
}

// headUnknown returns why the head of the chain cannot come from this log, or "".
// If the log has a newer epoch than the head, an unknown head is expected.
func (e *epochs) headUnknown(ctx context.Context, bounds events.Bounds) (string, error) {
	head := e.chain.head.Version()
	if head.IsZero() || head.Seq < bounds.First {
		return "", nil
	}
	if head.Seq <= bounds.Last {
		if same, err := e.holds(ctx, e.chain.head.Manifest); err != nil || same {
			return "", err
		}
	}
	seg, _, err := e.newest(ctx)
	if err != nil {
		return "", err
	}
	if seg != nil && seg.Epoch > head.Epoch {
		return "", nil
	}
	return fmt.Sprintf("it does not hold the record of the head %s", head), nil
}

func (e *epochs) bounds(ctx context.Context) (events.Bounds, error) {
	bounds, err := e.cfg.Log.Bounds(ctx)
	if err != nil {
		err = fmt.Errorf("bounds of the log: %w", err)
	}
	return bounds, err
}

func (e *epochs) get(ctx context.Context, seq uint64) (events.Record, error) {
	rec, err := e.cfg.Log.Get(ctx, seq)
	if err != nil {
		err = fmt.Errorf("record %d of the log: %w", seq, err)
	}
	return rec, err
}

// holds reports whether the log has the record of a version, which must lie
// within its bounds.
func (e *epochs) holds(ctx context.Context, man *store.Manifest) (bool, error) {
	rec, err := e.get(ctx, man.GetVersion().GetSeq())
	if err != nil {
		return false, err
	}
	want, err := store.HashFrom(man.GetRecordHash())
	return err == nil && rec.Hash == want, nil
}

// skipExpired continues from a fold checkpoint of this build if the log no
// longer has the records after the ledger. Without a checkpoint the log counts
// as lost.
func (e *epochs) skipExpired(ctx context.Context) error {
	bounds, err := e.bounds(ctx)
	if err != nil || e.ledger.Position().Seq+1 >= bounds.First {
		return err
	}
	for man, err := range e.cfg.Feed.History(ctx) {
		if err != nil {
			return fmt.Errorf("look for a checkpoint of the fold: %w", err)
		}
		at := store.VersionOf(man.GetFoldCheckpoint().GetVersion())
		if man.GetBuild() != e.cfg.Build || at.IsZero() || at.Seq+1 < bounds.First {
			continue
		}
		rows, err := store.ReadRows(ctx, e.cfg.Feed, man.GetFoldCheckpoint())
		if err != nil {
			return fmt.Errorf("checkpoint of the fold at %s: %w", at, err)
		}
		f, err := fold.Restore(e.cfg.Build, e.cfg.Judge, ledger.Pairs(slices.Values(rows)))
		if err != nil {
			return fmt.Errorf("checkpoint of the fold at %s: %w", at, err)
		}
		e.cfg.Logger.Info("the log starts after the fold, continuing from a checkpoint", "first", bounds.First, "checkpoint", f.Position())
		f.Rewrite()
		e.ledger.Restart(f)
		return nil
	}
	return nil
}

// skipBaseless resumes in the newest epoch if only an earlier epoch has a base
// that is not found: the newest one does not need it.
func (e *epochs) skipBaseless(ctx context.Context) error {
	if len(e.baseless) == 0 {
		return nil
	}
	seg, rec, err := e.newest(ctx)
	if err != nil || rec.Seq == 0 {
		return err
	}
	if _, missing := e.baseless[seg.Base]; missing {
		return nil
	}
	_, err = e.resume(ctx)
	return err
}

// newest returns the newest epoch of the log, as ledger.NewestEpoch does. It
// returns no record if the base of the epoch is lost: no fold can resume there.
func (e *epochs) newest(ctx context.Context) (*events.Segment, events.Record, error) {
	seg, rec, err := ledger.NewestEpoch(ctx, e.cfg.Log)
	if seg != nil && e.baseLost(seg.Base) {
		rec = events.Record{}
	}
	return seg, rec, err
}

// resume continues at the newest epoch of the log if it is newer than the
// ledger's: earlier records no longer count.
func (e *epochs) resume(ctx context.Context) (bool, error) {
	seg, rec, err := e.newest(ctx)
	if err != nil || seg == nil || rec.Seq == 0 || seg.Epoch <= e.ledger.Position().Epoch {
		return false, err
	}
	if _, err := e.fold(ctx, rec); err != nil {
		return false, fmt.Errorf("resume at record %d: %w", rec.Seq, err)
	}
	clear(e.baseless)
	e.chain.ckpt.forget()
	e.cfg.Logger.Info("resumed", "position", e.ledger.Position())
	return true, nil
}

// fold folds a record, and notes since when the base of a segment is missing.
func (e *epochs) fold(ctx context.Context, rec events.Record) ([]problem.Diagnostic, error) {
	base, _ := e.ledger.Fold().NeedsBase(rec)
	problems, err := e.ledger.Apply(ctx, rec)
	var unread *ledger.BaseError
	if !errors.As(err, &unread) {
		delete(e.baseless, base)
		return problems, err
	}
	_, noted := e.baseless[base]
	if !noted && (errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrCorrupt)) {
		e.baseless[base] = e.cfg.Now()
		// A bus that lost this base has probably lost the head's content too:
		// look for both from now on.
		_, _, _ = e.chain.contentOfHead(ctx)
	}
	return nil, err
}

// baseLost reports whether a base has been missing for so long that it counts as
// lost.
func (e *epochs) baseLost(h ident.Hash) bool {
	since, noted := e.baseless[h]
	return noted && e.cfg.Now().Sub(since) >= lostAfter
}

func (e *epochs) anyBaseLost() bool {
	for h := range e.baseless {
		if e.baseLost(h) {
			return true
		}
	}
	return false
}

// due returns the function that begins the segment or epoch which must be on the
// log before anything is published; nil if none is due.
func (e *epochs) due() func(context.Context) error {
	epoch := func(reason string) func(context.Context) error {
		return func(ctx context.Context) error { return e.beginEpoch(ctx, reason, true) }
	}
	at, seg, head := e.ledger.Position(), e.ledger.Fold().Segment(), e.chain.head
	switch {
	case e.owes():
		return e.payOwed
	case at.Epoch == 0:
		return epoch("the log has none yet")
	case e.claimed():
		return func(ctx context.Context) error {
			before := e.stats.Segments
			err := e.beginEpoch(ctx, "a frontend has a version that is not on the chain", true)
			if e.stats.Segments > before { // else other records came first
				e.believed()
			}
			return err
		}
	case e.blobless >= at.Epoch:
		return epoch("the bus has lost its blobs, and with them the content of versions")
	case head.Manifest == nil && head.Seq > 0 && seg.VersionsSeq != head.Seq,
		head.Manifest == nil && head.Seq == 0 && (seg.VersionsSeq > 0 || e.chain.file.stored.Version().Epoch == at.Epoch):
		return epoch("the versions expired or were lost")
	case seg.Build != e.cfg.Build,
		head.Manifest != nil && head.Manifest.GetBuild() != e.cfg.Build &&
			seg.Head != head.Version() && head.Version().Epoch >= at.Epoch:
		return e.beginSegment
	}
	return nil
}

// beginEpoch appends a greater epoch to the log. Its base is the state of this
// fold or, if the fold is behind the head, the state of the head. readAll: the
// fold has read this log to its end.
func (e *epochs) beginEpoch(ctx context.Context, reason string, readAll bool) error {
	head, _, err := e.chain.contentOfHead(ctx)
	if err != nil {
		return err
	}
	version := e.chain.head.Version()
	rows, err := e.ledger.Fold().EpochBase(version, ledger.Pairs(head.Rows()))
	if err != nil {
		return fmt.Errorf("base of an epoch from head %s: %w", version, err)
	}
	if !readAll {
		if err := e.readMissed(ctx); err != nil {
			return err
		}
	}
	e.cfg.Logger.Warn("a new epoch begins", "reason", reason, "position", e.ledger.Position(), "head", version)
	return e.segment(ctx, events.Segment{}, rows, readAll)
}

// beginSegment appends a segment: later versions are of this build, and the values
// that the head serves become the last good ones.
func (e *epochs) beginSegment(ctx context.Context) error {
	head, lost, err := e.chain.contentOfHead(ctx)
	if err != nil {
		return err
	}
	if lost { // what this build would serve is the nearest: an empty base would drop objects whose newest value it refuses
		head = e.ledger.Content()
	}
	rows, err := fold.BuildBase(ledger.Pairs(head.Rows()))
	if err != nil {
		return fmt.Errorf("base of a segment from head %s: %w", e.chain.head.Version(), err)
	}
	epoch, was := e.ledger.Position().Epoch, e.ledger.Fold().Segment()
	e.cfg.Logger.Info("a new segment begins", "epoch", epoch, "build", e.cfg.Build, "was", was.Build)
	return e.segment(ctx, events.Segment{Epoch: epoch, EpochRecord: was.EpochRecord}, rows, true)
}

// segment appends a segment; if seg has no Epoch, it begins a greater one. The
// fence is the end of the log. If readAll, it appends nothing when the log has
// records that the fold has not read yet. Otherwise the missed overlays are appended again with the segment;
// sources list again anyway.
func (e *epochs) segment(ctx context.Context, seg events.Segment, rows iter.Seq2[string, []byte], readAll bool) (err error) {
	// Durable first. A crash after this leaves blobs that no record names.
	if seg.Base, err = e.ledger.WriteBase(ctx, rows); err != nil {
		return err
	}
	failpoint.At(failpoint.BuilderBase)
	bounds, err := e.bounds(ctx)
	if err != nil {
		return err
	}
	var again []events.Event
	switch {
	case !readAll:
		if again, err = e.missedUpTo(ctx, bounds.Last); err != nil {
			return err
		}
	case bounds.Last != e.ledger.Position().Seq:
		return nil // first read the records that were appended meanwhile
	}
	if seg.Epoch == 0 {
		// After bounds: an epoch that another builder began before them is lower
		// than this one, and one that it begins after them breaks the fence.
		if seg.Epoch, err = e.next(ctx); err != nil || seg.Epoch == 0 {
			return err
		}
	}
	seg.Build, seg.Head, seg.VersionsSeq = e.cfg.Build, e.chain.head.Version(), e.chain.head.Seq
	batch := append([]events.Event{e.cfg.event(&seg)}, again...)
	fence := events.Fence{Kind: events.FenceLog, Seq: bounds.Last, Generation: e.gen}
	// After a crash here the segment is valid, and the next leader reads it.
	_, err = e.cfg.Log.Append(ctx, batch, fence)
	if errors.Is(err, events.ErrTooLarge) && len(again) > 0 {
		// Append them one by one. A crash in between loses the rest. An append of the
		// segment without an answer does not: it may arrive late.
		e.owed = owed{max(seg.Epoch, 1), again}
		if _, err = e.cfg.Log.Append(ctx, batch[:1], fence); err == nil {
			err = e.payOwed(ctx)
		}
	}
	if errors.Is(err, events.ErrConflict) {
		e.stats.Conflicts++
		return nil // read what was appended, and see whether the segment is still due
	}
	if err != nil {
		return fmt.Errorf("append segment of epoch %d: %w", seg.Epoch, err)
	}
	failpoint.At(failpoint.BuilderSegment)
	e.stats.Segments++
	return nil
}

// next returns an epoch that is greater than every known one. It returns 0 if the
// log meanwhile has a newer epoch than the ledger: the builder must resume in it.
func (e *epochs) next(ctx context.Context) (uint64, error) {
	here := e.ledger.Position().Epoch
	seg, rec, err := e.newest(ctx)
	if err != nil || rec.Seq != 0 && seg.Epoch > here {
		return 0, err
	}
	known := max(here, e.chain.head.Version().Epoch, e.claims.newest.own.Epoch)
	if seg != nil {
		known = max(known, seg.Epoch)
	}
	return max(known+1, uint64(e.cfg.Now().Unix())), nil
}

// appendOverlays appends events with overlays, all of them or none. appended is
// false if another builder has appended overlays meanwhile.
func (e *epochs) appendOverlays(ctx context.Context, batch []events.Event) (appended bool, err error) {
	last, err := e.cfg.Log.Last(ctx, events.BuilderOverlaySubject)
	if err != nil && !errors.Is(err, events.ErrNotFound) {
		return false, fmt.Errorf("last overlay on the log: %w", err)
	}
	fence := events.Fence{Kind: events.FenceSubject, Subject: events.BuilderOverlaySubject, Seq: last.Seq, Generation: e.gen}
	if _, err = e.cfg.Log.Append(ctx, batch, fence); errors.Is(err, events.ErrConflict) {
		e.stats.Conflicts++
		return false, nil
	}
	return err == nil, err
}
