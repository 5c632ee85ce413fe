package builder

import (
	"time"

	"meshlog.dev/proto/ident"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/store"
)

// A content checkpoint is written after so many versions, so that a frontend
// that was away reads few deltas, and at least every quarter of the time for
// which the chain keeps them, so that there always is one to begin from; a
// fold checkpoint after more, so that a replay reads little of the log.
const (
	versionsPerCheckpoint     = 256
	versionsPerFoldCheckpoint = 1024
)

// CheckpointEvery is how much time lies between two checkpoints at most, where
// history is how long the chain is kept.
func CheckpointEvery(history time.Duration) time.Duration { return history / 4 }

// checkpoints counts towards the next checkpoint and keeps what goes out with
// the next manifest.
type checkpoints struct {
	sinceContent, sinceFold int
	busy                    bool
	next, nextFold          time.Time // when one is due at the latest
	content, fold           *snapshotv1.Checkpoint
}

// into puts what was written into the next manifest.
func (c *checkpoints) into(man *store.Manifest) {
	man.Checkpoint, man.FoldCheckpoint = c.content, c.fold
}

// forget drops what is not out yet: an epoch begins, and it may be lost.
func (c *checkpoints) forget() {
	c.content, c.fold, c.next, c.nextFold = nil, nil, time.Time{}, time.Time{}
}

// sent says that a manifest went out.
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

// start starts what is due.
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
	case content && !(fold && c.nextFold.Before(c.next)): // of two the one that has waited for longer
		c.busy, c.sinceContent, c.next = true, 0, now.Add(every)
		w.Content(v, s)
	case fold:
		c.busy, c.sinceFold, c.nextFold = true, 0, now.Add(every)
		w.Fold()
	}
}

// Checkpointed takes what a checkpoint that was started came to.
func (m *Machine) Checkpointed(c Checkpointed) {
	m.ckpt.busy = false
	if c.Err != nil {
		m.log.Warn("checkpoint", "error", c.Err)
		m.ckpt.next, m.ckpt.nextFold = time.Time{}, time.Time{} // with the next version
		return
	}
	// What an epoch before wrote may have been lost with it.
	if c.Content != nil && m.ofThisEpoch(c.Content) {
		m.ckpt.content = c.Content
	}
	if c.Fold != nil && m.ofThisEpoch(c.Fold) {
		m.ckpt.fold = c.Fold
	}
}

func (m *Machine) ofThisEpoch(c *snapshotv1.Checkpoint) bool {
	return c.GetVersion().GetEpoch() == m.fold.Position().Epoch
}

// timing is when what led to a version passed which stage.
type timing struct {
	observed, logged, read, due, built time.Time
	traces                             []string // of the records, the first ones; each once
}
