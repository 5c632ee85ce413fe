package link

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"meshlog.dev/store"
)

// Fetch makes the content of v: the nearest checkpoint at or before it, and
// the deltas from there. back yields the chain, newest first.
func Fetch(ctx context.Context, blobs store.Blobs, back iter.Seq2[store.Update, error], v store.Version) (store.Stored, error) {
	links, err := toCheckpoint(ctx, back, v)
	if err != nil {
		return store.Stored{}, fmt.Errorf("fetch version %s: %w", v, err)
	}
	base := links[len(links)-1].Manifest
	var s *store.Snapshot
	if base.GetCheckpoint() != nil {
		if s, err = store.ReadCheckpoint(ctx, blobs, base.GetCheckpoint()); err != nil {
			return store.Stored{}, fmt.Errorf("fetch version %s: %w", v, err)
		}
		links = links[:len(links)-1]
		if s.Root() != store.RootOf(base) {
			return store.Stored{}, wrongRoot(v, base, s)
		}
	}
	for _, u := range slices.Backward(links) {
		s = s.With(u.Delta)
		if s.Root() != store.RootOf(u.Manifest) {
			return store.Stored{}, wrongRoot(v, u.Manifest, s)
		}
		base = u.Manifest
	}
	return store.Stored{Manifest: base, Snapshot: s}, nil
}

func wrongRoot(v store.Version, m *store.Manifest, s *store.Snapshot) error {
	return fmt.Errorf("fetch version %s: version %s has root %s, its manifest says %s: %w",
		v, store.VersionOf(m.GetVersion()), s.Root(), store.RootOf(m), store.ErrCorrupt)
}

// toCheckpoint returns the updates from v back to the first one that needs none
// before it, newest first: it has a checkpoint, or was made from nothing.
func toCheckpoint(ctx context.Context, back iter.Seq2[store.Update, error], v store.Version) ([]store.Update, error) {
	var links []store.Update
	for u, err := range back {
		if err != nil {
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		at := store.VersionOf(u.Manifest.GetVersion())
		switch {
		case len(links) > 0 && !Follows(u.Manifest, links[len(links)-1].Manifest):
			return nil, fmt.Errorf("the version before %s is not there: %w", store.VersionOf(links[len(links)-1].Manifest.GetVersion()), store.ErrNotFound)
		case len(links) == 0 && v.Less(at):
			continue
		case len(links) == 0 && at != v:
			return nil, store.ErrNotFound
		}
		links = append(links, u)
		if prev, _ := store.PreviousOf(u.Manifest); prev.IsZero() || u.Manifest.GetCheckpoint() != nil {
			return links, nil
		}
	}
	if len(links) > 0 {
		return nil, fmt.Errorf("no checkpoint at or before it is there: %w", store.ErrNotFound)
	}
	return nil, store.ErrNotFound
}
