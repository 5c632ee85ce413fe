package builder

import (
	"context"

	"meshlog.dev/proto/ident"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/internal/failpoint"
	"meshlog.dev/store"
)

// checkpointer writes checkpoints in a goroutine of its own, beside the owner of
// the Machine: snapshots are immutable, and the file has the fold as of one
// transaction.
type checkpointer struct {
	b     *Builder
	spawn func(func(context.Context)) // Run waits for the goroutine
	// writer remembers which blobs it wrote in one connection and one epoch;
	// later the bus may have lost them.
	writer            *store.CheckpointWriter
	generation, epoch uint64
}

// Content implements Checkpoints.
func (c *checkpointer) Content(v ident.Position, s *store.Snapshot) {
	if g := c.b.o.Feed.Generation(); c.writer == nil || g != c.generation || v.Epoch != c.epoch {
		c.writer, c.generation, c.epoch = &store.CheckpointWriter{}, g, v.Epoch
	}
	w := c.writer
	c.do(func(ctx context.Context) Checkpointed {
		cp, err := w.Write(ctx, chunks{c.b.o.Feed}, s, v)
		return Checkpointed{Content: cp, Err: err}
	})
}

// Fold implements Checkpoints.
func (c *checkpointer) Fold() {
	at := c.b.m.Filed()
	c.do(func(ctx context.Context) Checkpointed {
		cp, err := c.fold(ctx, at)
		return Checkpointed{Fold: cp, Err: err}
	})
}

func (c *checkpointer) fold(ctx context.Context, at ident.Position) (*snapshotv1.Checkpoint, error) {
	var rows []store.Row
	for r, err := range c.b.o.Store.Side(ctx) {
		if err != nil {
			return nil, err
		}
		rows = append(rows, r)
	}
	return store.WriteRows(ctx, chunks{c.b.o.Feed}, rows, at)
}

// do runs f and hands its outcome to the owner. The Machine starts one at a time.
func (c *checkpointer) do(f func(context.Context) Checkpointed) {
	c.spawn(func(ctx context.Context) {
		done := f(ctx)
		failpoint.At(failpoint.BuilderCheckpointed)
		_ = c.b.call(ctx, func(context.Context) error { c.b.m.Checkpointed(done); return nil })
	})
}

// chunks passes a failpoint before each part of a checkpoint.
type chunks struct{ store.Blobs }

// PutBlob implements store.Blobs.
func (c chunks) PutBlob(ctx context.Context, b []byte) (ident.Hash, error) {
	failpoint.At(failpoint.BuilderCheckpointPart)
	return c.Blobs.PutBlob(ctx, b)
}
