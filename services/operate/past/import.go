package past

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

// Destination is an empty bus, to which an archive is restored.
type Destination interface {
	store.Publisher
	// Restore puts records on the empty log, with their sequence numbers.
	Restore(ctx context.Context, first uint64, records iter.Seq2[events.Raw, error]) error
}

// Import restores an archive. The records of the log keep their events and
// sequence numbers, and get new times; versions keep everything. By the times, a
// builder that is started afterwards sees that this is not the log from which the
// last version was made, and begins an epoch with that version as its base.
// progress may be nil.
func Import(ctx context.Context, a Archive, to Destination, progress func(done, total int64)) error {
	head, err := to.Head(ctx)
	if err != nil {
		return err
	}
	if head.Seq != 0 {
		return fmt.Errorf("%w: it has versions already", ErrNotEmpty)
	}
	blobs := a.Files(blobFiles)
	bounds, err := a.Bounds(ctx)
	if err != nil {
		return err
	}
	total, done := int64(len(blobs))+int64(bounds.Last+1-bounds.First), int64(0)
	step := func() {
		if done++; progress != nil {
			progress(done, total)
		}
	}
	// Blobs first: after an error, nothing refers to a blob that is not there.
	for _, name := range blobs {
		b, err := a.File(ctx, name)
		if err != nil {
			return err
		}
		if _, err := to.PutBlob(ctx, b); err != nil {
			return err
		}
		step()
	}
	records := func(yield func(events.Raw, error) bool) {
		for r, err := range a.Raw(ctx, bounds.First, bounds.Last) {
			if !yield(r, err) {
				return
			}
			step()
		}
	}
	if err := to.Restore(ctx, bounds.First, records); err != nil {
		return err
	}
	return publishAll(ctx, FromArchive("", a).Versions, to)
}

// ErrNotEmpty says that the destination of an import has data.
var ErrNotEmpty = errors.New("is not empty")

// publishAll publishes the versions in order.
func publishAll(ctx context.Context, versions Versions, to store.Publisher) error {
	seq, generation := uint64(0), to.Generation()
	for u, err := range versions.Updates(ctx, ident.Position{}) {
		if err != nil {
			return err
		}
		if seq, err = to.Publish(ctx, u, seq, generation); errors.Is(err, store.ErrConflict) {
			return fmt.Errorf("%w any more: stop the builder that publishes there, and import into an empty bus: %w", ErrNotEmpty, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
