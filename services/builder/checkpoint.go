package builder

import (
	"time"

	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/store"
)

// A content checkpoint is written after so many versions, so that a frontend
// that was away reads few deltas; a fold checkpoint after more, so that a
// replay reads little of the log.
const (
	versionsPerCheckpoint     = 256
	versionsPerFoldCheckpoint = 1024
)

// checkpoints counts towards the next checkpoint and keeps what goes out with
// the next manifest.
type checkpoints struct {
	sinceContent, sinceFold int
	busy                    bool
	content, fold           *snapshotv1.Checkpoint
}

// into puts what was written into the next manifest.
func (c *checkpoints) into(man *store.Manifest) {
	man.Checkpoint, man.FoldCheckpoint = c.content, c.fold
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
func (c *checkpoints) start(w Checkpoints, v store.Version, s *store.Snapshot) {
	switch {
	case c.busy:
	case c.sinceContent >= versionsPerCheckpoint:
		c.busy, c.sinceContent = true, 0
		w.Content(v, s)
	case c.sinceFold >= versionsPerFoldCheckpoint:
		c.busy, c.sinceFold = true, 0
		w.Fold()
	}
}

// Checkpointed takes what a checkpoint that was started came to.
func (m *Machine) Checkpointed(c Checkpointed) {
	m.ckpt.busy = false
	if c.Err != nil {
		m.log.Warn("checkpoint", "err", c.Err)
		return
	}
	if c.Content != nil {
		m.ckpt.content = c.Content
	}
	if c.Fold != nil {
		m.ckpt.fold = c.Fold
	}
}

// timing is when what led to a version passed which stage.
type timing struct{ observed, logged, read, built time.Time }
