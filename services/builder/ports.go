package builder

import (
	"context"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/mesh/gate"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/store"
)

// Log is the log as a builder needs it.
type Log interface {
	events.Appender
	events.Reader
}

// Feed is the version chain as a builder needs it.
type Feed interface {
	store.Publisher
	store.Chain
}

// Fleet is what a leader says to the other processes; nothing of it lasts, and
// a lost word is said again.
type Fleet interface {
	// Tick says where the head is.
	Tick(ctx context.Context, t *reportv1.Tick) error
	// AskListing asks the watcher of a shard to list again.
	AskListing(ctx context.Context, r *reportv1.ListingRequest) error
}

// Gate makes what frontends will make. One builder uses it.
type Gate interface {
	// Build builds what frontends will build from a world, before it is
	// published. An error keeps the version from being published.
	Build(w *world.World, changed []ident.Key) ([]problem.Diagnostic, error)
	// Keep says for which classes Made will be asked, of whatever world comes.
	Keep(classes []gate.ClassOf)
	// Made is the sum of the resource of that name which is made for a class,
	// one of those that are kept, in the world that was built last; false if
	// there is none. What is in quarantine does not count.
	Made(class gate.ClassOf, name string) (sum [16]byte, ok bool)
	// Served says of a world, whichever that is, what a class is served of a
	// name, and the sum of that; nil: nothing.
	Served(w *world.World) func(class gate.ClassOf, name string) (value []byte, sum [16]byte)
}

// Checkpoints writes whole contents to the blobs. The Machine starts them and
// takes what comes back; where the work is done is its owner's business.
type Checkpoints interface {
	// Content writes the content of a version.
	Content(v ident.Position, s *store.Snapshot)
	// Fold writes the fold that the store's side table holds.
	Fold()
}

// Checkpointed is what a checkpoint came to.
type Checkpointed struct {
	Content *snapshotv1.Checkpoint
	Fold    *snapshotv1.Checkpoint
	Err     error
}
