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

// Message is an update as it lies on a chain.
type Message struct {
	Manifest *store.Manifest
	// Delta returns the delta, which may have to be read from elsewhere.
	Delta func(context.Context) (store.Delta, error)
}

// Fetch makes the content of v: the nearest checkpoint at or before it, and
// the deltas from there. back yields the chain, newest first.
func Fetch(ctx context.Context, blobs store.Blobs, back iter.Seq2[Message, error], v ident.Position) (store.Stored, error) {
	from, err := toCheckpoint(back, v)
	if err != nil {
		return store.Stored{}, fmt.Errorf("fetch version %s: %w", v, err)
	}
	at := store.Stored{Manifest: from.manifest}
	if from.checkpoint != nil {
		if at.Snapshot, err = store.ReadCheckpoint(ctx, blobs, from.checkpoint); err != nil {
			return store.Stored{}, fmt.Errorf("fetch version %s: %w", v, err)
		}
	}
	for _, l := range slices.Backward(from.links) {
		if at.Snapshot, err = with(ctx, at.Snapshot, l); err != nil {
			return store.Stored{}, fmt.Errorf("fetch version %s: %w", v, err)
		}
		if err := check(at.Snapshot, l.Manifest); err != nil {
			return store.Stored{}, fmt.Errorf("fetch version %s: %w", v, err)
		}
	}
	return at, check(at.Snapshot, at.Manifest)
}

// check holds a content against what its manifest says.
func check(s *store.Snapshot, m *store.Manifest) error {
	if got, want := s.Root(), store.RootOf(m); got != want {
		return fmt.Errorf("version %s has root %s, its manifest says %s: %w",
			store.VersionOf(m.GetVersion()), got, want, store.ErrCorrupt)
	}
	return nil
}

func with(ctx context.Context, s *store.Snapshot, l Message) (*store.Snapshot, error) {
	d, err := l.Delta(ctx)
	if err != nil {
		return nil, fmt.Errorf("delta of version %s: %w", store.VersionOf(l.Manifest.GetVersion()), err)
	}
	return s.With(d), nil
}

// way is how to come to a version: from a checkpoint (nil: from nothing) by
// links, newest first.
type way struct {
	manifest   *store.Manifest // of the version
	checkpoint *snapshotv1.Checkpoint
	links      []Message
}

// toCheckpoint goes back from v to what needs nothing before it: a version that
// was made from nothing, or one of which a manifest on the way has the
// checkpoint. A checkpoint is written beside the chain and comes with a later
// manifest than the one of its version.
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
			return way{}, fmt.Errorf("what version %s follows is not there: %w",
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
	return way{}, fmt.Errorf("no checkpoint at or before it is there: %w", store.ErrNotFound)
}
