package builder

import (
	"context"

	"meshlog.dev/events"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/store"
)

// Log is the event log.
type Log interface {
	events.Appender
	events.Reader
}

// Feed is the version chain and its blobs.
type Feed interface {
	store.Publisher
	store.Chain
}

// Fleet carries messages of the leader to other processes. Messages may be lost;
// the leader repeats them.
type Fleet interface {
	// Tick announces the head, and the suspects that frontends are to report on.
	Tick(ctx context.Context, t *reportv1.Tick) error
	// AskListing asks the watcher of a shard to list again.
	AskListing(ctx context.Context, r *reportv1.ListingRequest) error
}

// WriteCheckpoint writes a checkpoint of a content or of a fold. It may run in a
// goroutine of its own: snapshots are immutable, and it reads the fold from the
// file in one transaction.
type WriteCheckpoint func(context.Context, store.Blobs) Checkpointed

// Checkpointed is the outcome of a checkpoint: one of Content, Fold and Err.
type Checkpointed struct {
	Content *snapshotv1.Checkpoint
	Fold    *snapshotv1.Checkpoint
	Err     error
}
