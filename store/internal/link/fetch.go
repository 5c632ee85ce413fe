package link

import (
	"context"
	"fmt"
	"iter"
	"slices"

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
func Fetch(ctx context.Context, blobs store.Blobs, back iter.Seq2[Message, error], v store.Version) (store.Stored, error) {
	links, err := toCheckpoint(back, v)
	if err != nil {
		return store.Stored{}, fmt.Errorf("fetch version %s: %w", v, err)
	}
	var at store.Stored
	for _, l := range slices.Backward(links) {
		if at.Manifest == nil && l.Manifest.GetCheckpoint() != nil {
			at.Snapshot, err = store.ReadCheckpoint(ctx, blobs, l.Manifest.GetCheckpoint())
		} else {
			at.Snapshot, err = with(ctx, at.Snapshot, l)
		}
		if err != nil {
			return store.Stored{}, fmt.Errorf("fetch version %s: %w", v, err)
		}
		at.Manifest = l.Manifest
		if got, want := at.Snapshot.Root(), store.RootOf(l.Manifest); got != want {
			return store.Stored{}, fmt.Errorf("fetch version %s: version %s has root %s, its manifest says %s: %w",
				v, at.Version(), got, want, store.ErrCorrupt)
		}
	}
	return at, nil
}

func with(ctx context.Context, s *store.Snapshot, l Message) (*store.Snapshot, error) {
	d, err := l.Delta(ctx)
	if err != nil {
		return nil, fmt.Errorf("delta of version %s: %w", store.VersionOf(l.Manifest.GetVersion()), err)
	}
	return s.With(d), nil
}

// toCheckpoint returns the messages from v back to the first one that needs
// none before it, newest first: it has a checkpoint, or was made from nothing.
func toCheckpoint(back iter.Seq2[Message, error], v store.Version) ([]Message, error) {
	var links []Message
	for l, err := range back {
		if err != nil {
			return nil, err
		}
		at := store.VersionOf(l.Manifest.GetVersion())
		switch {
		case len(links) > 0 && !Follows(l.Manifest, links[len(links)-1].Manifest):
			return nil, fmt.Errorf("what version %s follows is not there: %w", store.VersionOf(links[len(links)-1].Manifest.GetVersion()), store.ErrNotFound)
		case len(links) == 0 && v.Less(at):
			continue
		case len(links) == 0 && at != v:
			return nil, store.ErrNotFound
		}
		links = append(links, l)
		if prev, _ := store.PreviousOf(l.Manifest); prev.IsZero() || l.Manifest.GetCheckpoint() != nil {
			return links, nil
		}
	}
	if len(links) > 0 {
		return nil, fmt.Errorf("no checkpoint at or before it is there: %w", store.ErrNotFound)
	}
	return nil, store.ErrNotFound
}
