package builder

import (
	"context"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
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

// Checkpoints writes checkpoints to the blobs. The Machine starts one at a time,
// and its owner hands the outcome to Machine.Checkpointed.
type Checkpoints interface {
	// Content writes the content of a version.
	Content(v ident.Position, s *store.Snapshot)
	// Fold writes the fold in the side table of the store.
	Fold()
}

// Checkpointed is the outcome of a checkpoint: one of Content, Fold and Err.
type Checkpointed struct {
	Content *snapshotv1.Checkpoint
	Fold    *snapshotv1.Checkpoint
	Err     error
}
