package link

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"meshlog.dev/proto/ident"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/store"
)

// Message is an update of a chain.
type Message struct {
	Manifest *store.Manifest
	// Delta returns the delta. It may read a blob.
	Delta func(context.Context) (store.Delta, error)
}

// Fetch makes the content of v from the nearest checkpoint at or before v and the
// deltas behind it. back yields the chain, newest first.
func Fetch(ctx context.Context, blobs store.Blobs, back iter.Seq2[Message, error], v ident.Position) (store.Stored, error) {
	at, err := fetch(ctx, blobs, back, v)
	if err != nil {
		return store.Stored{}, fmt.Errorf("fetch version %s: %w", v, err)
	}
	return at, nil
}

func fetch(ctx context.Context, blobs store.Blobs, back iter.Seq2[Message, error], v ident.Position) (store.Stored, error) {
	from, err := toCheckpoint(back, v)
	if err != nil {
		return store.Stored{}, err
	}
	at := store.Stored{Manifest: from.manifest}
	if from.checkpoint != nil {
		if at.Snapshot, err = store.ReadCheckpoint(ctx, blobs, from.checkpoint); err != nil {
			return store.Stored{}, err
		}
	}
	for _, l := range slices.Backward(from.links) {
		d, err := l.Delta(ctx)
		if err != nil {
			return store.Stored{}, fmt.Errorf("delta of version %s: %w", store.VersionOf(l.Manifest.GetVersion()), err)
		}
		at = store.Stored{Manifest: l.Manifest, Snapshot: at.Snapshot.With(d)}
		if err := at.Check(); err != nil {
			return store.Stored{}, err
		}
	}
	return at, at.Check()
}

// way leads to a version: from a checkpoint (nil: from an empty content) through
// links, newest first.
type way struct {
	manifest   *store.Manifest // of the version
	checkpoint *snapshotv1.Checkpoint
	links      []Message
}

// toCheckpoint goes back from v to a version that needs no earlier one: the first
// version of the chain, or one whose checkpoint a manifest on the way names. A
// checkpoint is written after its version, so a later manifest names it.
func toCheckpoint(back iter.Seq2[Message, error], v ident.Position) (way, error) {
	var w way
	for l, err := range back {
		if err != nil {
			return way{}, err
		}
		at := store.VersionOf(l.Manifest.GetVersion())
		switch {
		case w.manifest == nil && v.Less(at):
			continue
		case w.manifest == nil && at != v:
			return way{}, store.ErrNotFound
		case w.manifest == nil:
			w.manifest = l.Manifest
		case !Follows(l.Manifest, w.links[len(w.links)-1].Manifest):
			return way{}, fmt.Errorf("the version before %s is missing: %w",
				store.VersionOf(w.links[len(w.links)-1].Manifest.GetVersion()), store.ErrNotFound)
		}
		if w.checkpoint == nil {
			w.checkpoint = l.Manifest.GetCheckpoint()
		}
		if w.checkpoint != nil && store.VersionOf(w.checkpoint.GetVersion()) == at {
			return w, nil
		}
		w.links = append(w.links, l)
		prev, _ := store.PreviousOf(l.Manifest)
		switch {
		case prev.IsZero():
			w.checkpoint = nil
			return w, nil
		case w.checkpoint != nil && store.VersionOf(w.checkpoint.GetVersion()) == prev:
			return w, nil
		}
	}
	if w.manifest == nil {
		return way{}, store.ErrNotFound
	}
	return way{}, fmt.Errorf("there is no checkpoint at or before it: %w", store.ErrNotFound)
}
