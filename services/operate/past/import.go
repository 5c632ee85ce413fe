package past

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/events/archive"
	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

// RestoreLog puts records on an empty log, with their sequence numbers.
type RestoreLog func(ctx context.Context, first uint64, records iter.Seq2[events.Raw, error]) error

// Import restores an archive to an empty bus. The records of the log keep their
// events and sequence numbers, and get new times; versions keep everything. By the
// times, a builder that is started afterwards sees that this is not the log from
// which the last version was made, and begins an epoch with that version as its base.
// Records that the archived log refused stay refused.
func Import(
	ctx context.Context, a *archive.Archive, chain store.Publisher, restore RestoreLog, progress Progress,
) error {
	head, err := chain.Head(ctx)
	if err != nil {
		return err
	}
	if head.Seq != 0 {
		return fmt.Errorf("%w: it has versions already", ErrNotEmpty)
	}
	if err := checkEpochs(ctx, a, time.Now()); err != nil {
		return err
	}
	blobs := a.Files(blobFiles)
	bounds, err := a.Bounds(ctx)
	if err != nil {
		return err
	}
	done, total := uint64(0), uint64(len(blobs))+bounds.Last+1-bounds.First
	step := func() {
		done++
		progress.show(done, total)
	}
	// Blobs first: after an error, nothing refers to a blob that is not there.
	for _, name := range blobs {
		b, err := a.File(ctx, name)
		if err != nil {
			return err
		}
		if _, err := chain.PutBlob(ctx, b); err != nil {
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
	if err := restore(ctx, bounds.First, records); err != nil {
		return err
	}
	seq, generation := uint64(0), chain.Generation()
	for u, err := range FromArchive("", a).Versions.Updates(ctx, ident.Position{}) {
		if err != nil {
			return err
		}
		if seq, err = chain.Publish(ctx, u, seq, generation); errors.Is(err, store.ErrConflict) {
			return fmt.Errorf("%w any more: stop the builder that publishes there, and import into an empty bus: %w", ErrNotEmpty, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ErrNotEmpty says that the destination of an import has data.
var ErrNotEmpty = errors.New("is not empty")

// ErrFarEpoch says that an archive names an epoch that no log or chain of today takes.
var ErrFarEpoch = errors.New("names an epoch more than a year ahead of this machine's clock")

// checkEpochs returns ErrFarEpoch if the readers of the bus would refuse a segment or
// a version of the archive, which the archive's own times allow.
func checkEpochs(ctx context.Context, a *archive.Archive, now time.Time) error {
	limit := ident.MaxEpoch(now)
	for r, err := range a.Under(ctx, events.SegmentSubject) {
		if err != nil {
			return err
		}
		if g, ok := r.Event.Body.(*events.Segment); ok && max(g.Epoch, g.Head.Epoch) > limit {
			return fmt.Errorf("record %d: epoch %d: %w", r.Seq, max(g.Epoch, g.Head.Epoch), ErrFarEpoch)
		}
	}
	for m, err := range FromArchive("", a).Versions.History(ctx) {
		if err != nil {
			return err
		}
		if v := store.VersionOf(m.GetVersion()); v.Epoch > limit {
			return fmt.Errorf("version %s: %w", v, ErrFarEpoch)
		}
	}
	return nil
}
