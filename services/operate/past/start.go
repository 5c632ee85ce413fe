package past

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"google.golang.org/protobuf/proto"

	"meshlog.dev/events"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/builder/ledger"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/trial"
	"meshlog.dev/store"
)

// ErrTooOld says that a position lies before the replay floor, so it cannot be
// reached with the records and checkpoints that are left.
var ErrTooOld = errors.New("lies before the replay floor")

// ErrNotThere says that the log has no such record.
var ErrNotThere = errors.New("is not on the log")

// Begin returns a Replay that stands at the record seq or before it: at the
// nearest checkpoint of the fold, or beginning of an epoch.
func Begin(ctx context.Context, p *Past, seq uint64) (*Replay, error) {
	bounds, err := p.bounds(ctx)
	if err != nil {
		return nil, err
	}
	if seq > bounds.Last {
		return nil, fmt.Errorf("position %d %w, which ends at %d", seq, ErrNotThere, bounds.Last)
	}
	_, epoch, err := ledger.NewestEpoch(ctx, p.Log)
	if err != nil && !errors.Is(err, ledger.ErrNoSegment) {
		return nil, err
	}
	inNewest := epoch.Seq != 0 && epoch.Seq <= seq
	nearer := func(at uint64) bool { return at <= seq && (!inNewest || at > epoch.Seq) }
	for cp, err := range p.checkpoints(ctx, bounds, nearer) {
		if err != nil {
			return nil, err
		}
		return newReplay(p, cp), nil
	}
	if inNewest {
		return p.beginAt(ctx, epoch)
	}
	r, err := p.beginFirst(ctx, bounds)
	if err == nil && r.Position().Seq > seq {
		err = fmt.Errorf("position %d %w: that is %d, the log begins at %d", seq, ErrTooOld, r.Position().Seq, bounds.First)
	}
	return r, err
}

// BeginAtFloor returns a Replay that stands at the replay floor: the lowest
// position from which the log continues.
func BeginAtFloor(ctx context.Context, p *Past) (*Replay, error) {
	bounds, err := p.bounds(ctx)
	if err != nil {
		return nil, err
	}
	first, err := p.beginFirst(ctx, bounds)
	if err != nil && !errors.Is(err, ErrTooOld) || err == nil && first.Position().Seq < bounds.First {
		return first, err
	}
	// The head of the log expired: a checkpoint may lie before its first epoch.
	var lowest *fold.Fold
	earlier := func(at uint64) bool {
		return (lowest == nil || at < lowest.Position().Seq) && (first == nil || at < first.Position().Seq)
	}
	for cp, err := range p.checkpoints(ctx, bounds, earlier) {
		if err != nil {
			return nil, err
		}
		lowest = cp
	}
	if lowest != nil {
		return newReplay(p, lowest), nil
	}
	return first, err
}

func (p *Past) bounds(ctx context.Context) (events.Bounds, error) {
	if err := p.HasLog(); err != nil {
		return events.Bounds{}, err
	}
	return p.Log.Bounds(ctx)
}

// beginFirst begins as early as the records of the log alone allow: before record
// 1, or with the first record that begins an epoch.
func (p *Past) beginFirst(ctx context.Context, bounds events.Bounds) (*Replay, error) {
	if bounds.First <= 1 {
		return newReplay(p, fold.New("", judge{fold.KindJudge{Trial: trial.Problems}})), nil
	}
	for rec, err := range Records(ctx, p.Log, bounds.First, bounds.Last) {
		if err != nil {
			return nil, err
		}
		if g, ok := rec.Event.Body.(*events.Segment); ok && g.EpochRecord == 0 {
			return p.beginAt(ctx, rec)
		}
	}
	return nil, fmt.Errorf("the log from %d to %d %w: no epoch begins there", bounds.First, bounds.Last, ErrTooOld)
}

// beginAt begins with a record that begins an epoch.
func (p *Past) beginAt(ctx context.Context, rec events.Record) (*Replay, error) {
	r := newReplay(p, fold.New("", judge{fold.KindJudge{Trial: trial.Problems}}))
	_, err := r.Next(ctx, rec)
	r.from, r.first = r.Position(), rec.Seq
	return r, err
}

// checkpoints yields the folds of checkpoints that restore accepts, newest first.
// Its caller stops at an error.
func (p *Past) checkpoints(ctx context.Context, bounds events.Bounds, wanted func(seq uint64) bool) iter.Seq2[*fold.Fold, error] {
	return func(yield func(*fold.Fold, error) bool) {
		for m, err := range p.Versions.History(ctx) {
			var f *fold.Fold
			if err == nil {
				f, err = p.restore(ctx, m.GetFoldCheckpoint(), bounds, wanted)
			}
			if (f != nil || err != nil) && !yield(f, err) {
				return
			}
		}
	}
}

// restore returns the fold in a checkpoint of any build. It returns nil if the
// checkpoint is lost or at no wanted position, or the log does not continue there.
func (p *Past) restore(ctx context.Context, c *snapshotv1.Checkpoint, bounds events.Bounds, wanted func(seq uint64) bool) (*fold.Fold, error) {
	at := store.VersionOf(c.GetVersion())
	if at.IsZero() || at.Seq > bounds.Last || !wanted(at.Seq) {
		return nil, nil
	}
	rows, meta, err := p.foldRows(ctx, c)
	var f *fold.Fold
	if err == nil {
		f, err = fold.Restore(meta.GetBuild(), judge{fold.KindJudge{Trial: trial.Problems}}, ledger.Pairs(slices.Values(rows)))
	}
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, fold.ErrCorrupt) {
		return nil, nil // an older checkpoint, or the log, may suffice
	}
	// The checkpoint may be later than its manifest says: the builder continued
	// while it was written.
	if err != nil || !wanted(f.Position().Seq) {
		return nil, err
	}
	if leads, err := p.leadsOn(ctx, f, bounds); !leads {
		return nil, err
	}
	return f, nil
}

// leadsOn reports whether the log continues where f ends: the log may have been
// rewound since.
func (p *Past) leadsOn(ctx context.Context, f *fold.Fold, bounds events.Bounds) (bool, error) {
	at := f.Position().Seq
	if at < bounds.First || at > bounds.Last {
		return at+1 == bounds.First, nil // the record has expired, the next one has not
	}
	rec, err := p.Log.Get(ctx, at)
	return err == nil && rec.Hash == f.RecordHash(), err
}

// foldRows returns the rows of a checkpoint of the fold, and its meta row.
func (p *Past) foldRows(ctx context.Context, c *snapshotv1.Checkpoint) ([]store.Row, *snapshotv1.FoldMeta, error) {
	rows, err := store.ReadRows(ctx, p.Blobs, c)
	if err != nil {
		return nil, nil, err
	}
	for _, row := range rows {
		var r snapshotv1.FoldRow
		if err := proto.Unmarshal(row.Value, &r); err == nil && r.GetMeta() != nil {
			return rows, r.GetMeta(), nil
		}
	}
	return rows, nil, nil
}
