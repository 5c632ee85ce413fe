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

// Destination is an empty bus that takes an archive.
type Destination interface {
	store.Publisher
	// Restore puts records on the log, which has none, under their numbers.
	Restore(ctx context.Context, first uint64, records iter.Seq2[events.Raw, error]) error
}

// Import restores an archive. The log gets its events and their numbers back,
// and other times; the versions get everything back. A builder that is started
// afterwards sees by the times that this is not the log from which the last
// version was made, and begins an epoch with that version as its base.
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
	// First what others refer to: after an error nothing refers to nothing.
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

// ErrNotEmpty says that something is where an archive is to be imported.
var ErrNotEmpty = errors.New("is not empty")

// publishAll publishes the versions, each behind the one before.
func publishAll(ctx context.Context, versions Versions, to store.Publisher) error {
	seq, generation := uint64(0), to.Generation()
	for u, err := range versions.Updates(ctx, ident.Position{}) {
		if err != nil {
			return err
		}
		if seq, err = to.Publish(ctx, u, seq, generation); errors.Is(err, store.ErrConflict) {
			return fmt.Errorf("%w any more, a builder publishes: stop it, and begin anew: %w", ErrNotEmpty, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
