package builder

import (
	"time"

	"meshlog.dev/proto/ident"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
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
}

// forget drops the checkpoints that no manifest names yet: an epoch begins, and
// they may be lost.
func (c *checkpoints) forget() {
	c.content, c.fold, c.next, c.nextFold = nil, nil, time.Time{}, time.Time{}
}

// sent says that a manifest was published.
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

// start starts a checkpoint of version v if one is due.
func (c *checkpoints) start(w Checkpoints, v ident.Position, s *store.Snapshot, now time.Time, history time.Duration) {
	every := CheckpointEvery(history)
	for _, at := range []*time.Time{&c.next, &c.nextFold} {
		if at.Sub(now) > every { // set by a clock that has stepped back
			*at = time.Time{}
		}
	}
	content := c.sinceContent >= versionsPerCheckpoint || !now.Before(c.next)
	fold := c.sinceFold >= versionsPerFoldCheckpoint || !now.Before(c.nextFold)
	switch {
	case c.busy:
	case content && !(fold && c.nextFold.Before(c.next)): // of two, the one that has waited longer
		c.busy, c.sinceContent, c.next = true, 0, now.Add(every)
		w.Content(v, s)
	case fold:
		c.busy, c.sinceFold, c.nextFold = true, 0, now.Add(every)
		w.Fold()
	}
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
