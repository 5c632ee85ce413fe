package builder

import (
	"context"
	"time"

	"meshlog.dev/proto/ident"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/internal/failpoint"
	"meshlog.dev/store"
)

// After so many versions a content checkpoint is written, so that a frontend
// that was away reads few deltas, and a fold checkpoint after more, so that a
// replay reads little of the log. Each is written at least every CheckpointEvery,
// so that the chain always has one.
const (
	versionsPerCheckpoint     = 256
	versionsPerFoldCheckpoint = 1024
)

// CheckpointEvery returns the most time between two checkpoints, where history
// is how long the chain is kept.
func CheckpointEvery(history time.Duration) time.Duration { return history / 4 }

// checkpoints starts checkpoints when they are due, and holds those that the
// next manifest names.
type checkpoints struct {
	sinceContent, sinceFold int // versions
	busy                    bool
	next, nextFold          time.Time // the latest time of the next one
	content, fold           *snapshotv1.Checkpoint
	// writer remembers which blobs it wrote in one connection and one epoch;
	// later the bus may have lost them.
	writer            *store.CheckpointWriter
	generation, epoch uint64
}

// forget drops the checkpoints that no manifest names yet: a new epoch begins, and
// the bus may have lost them.
func (c *checkpoints) forget() {
	c.content, c.fold, c.next, c.nextFold = nil, nil, time.Time{}, time.Time{}
}

// sent notes that a manifest was published.
func (c *checkpoints) sent(man *store.Manifest) {
	c.sinceContent++
	c.sinceFold++
	if c.content == man.GetCheckpoint() {
		c.content = nil
	}
	if c.fold == man.GetFoldCheckpoint() {
		c.fold = nil
	}
}

// due reports whether a checkpoint of the content, or one of the fold, must be
// started now.
func (c *checkpoints) due(now time.Time, history time.Duration) (content, fold bool) {
	every := CheckpointEvery(history)
	for _, at := range []*time.Time{&c.next, &c.nextFold} {
		if at.Sub(now) > every { // set by a clock that has stepped back
			*at = time.Time{}
		}
	}
	content = c.sinceContent >= versionsPerCheckpoint || !now.Before(c.next)
	fold = c.sinceFold >= versionsPerFoldCheckpoint || !now.Before(c.nextFold)
	switch {
	case c.busy:
		return false, false
	case content && !(fold && c.nextFold.Before(c.next)): // of two, the one that has waited longer
		c.busy, c.sinceContent, c.next = true, 0, now.Add(every)
		return true, false
	case fold:
		c.busy, c.sinceFold, c.nextFold = true, 0, now.Add(every)
	}
	return false, fold
}

// startCheckpoint starts a checkpoint of the head if one is due.
func (c *chain) startCheckpoint(now time.Time) {
	switch content, fold := c.ckpt.due(now, c.cfg.History); {
	case content:
		c.cfg.StartCheckpoint(c.ckpt.writeContent(c.cfg.Feed.Generation(), c.ledger.Position(), c.ledger.Content()))
	case fold:
		c.cfg.StartCheckpoint(c.file.writeFold())
	}
}

// writeContent returns the function that writes the content of a version.
func (c *checkpoints) writeContent(generation uint64, v ident.Position, s *store.Snapshot) WriteCheckpoint {
	if c.writer == nil || generation != c.generation || v.Epoch != c.epoch {
		c.writer, c.generation, c.epoch = &store.CheckpointWriter{}, generation, v.Epoch
	}
	w := c.writer
	return func(ctx context.Context, blobs store.Blobs) Checkpointed {
		content, err := w.Write(ctx, blobs, s, v)
		return Checkpointed{Content: content, Err: err}
	}
}

// writeFold returns the function that writes the fold in the file.
func (f *file) writeFold() WriteCheckpoint {
	at := f.at
	return func(ctx context.Context, blobs store.Blobs) Checkpointed {
		rows, err := sideRows(ctx, f.store)
		if err != nil {
			return Checkpointed{Err: err}
		}
		fold, err := store.WriteRows(ctx, blobs, rows, at)
		return Checkpointed{Fold: fold, Err: err}
	}
}

// chunks passes a failpoint before each part of a checkpoint.
type chunks struct{ store.Blobs }

// PutBlob implements store.Blobs.
func (c chunks) PutBlob(ctx context.Context, b []byte) (ident.Hash, error) {
	failpoint.At(failpoint.BuilderCheckpointPart)
	return c.Blobs.PutBlob(ctx, b)
}

// done takes the outcome of the checkpoint that was started.
func (c *checkpoints) done(outcome Checkpointed, usable func(*snapshotv1.Checkpoint) bool) {
	c.busy = false
	if outcome.Err != nil {
		c.next, c.nextFold = time.Time{}, time.Time{} // again with the next version
		return
	}
	if usable(outcome.Content) {
		c.content = outcome.Content
	}
	if usable(outcome.Fold) {
		c.fold = outcome.Fold
	}
}
