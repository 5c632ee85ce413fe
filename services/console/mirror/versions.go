package mirror

import (
	"context"
	"errors"
	"fmt"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/store"
)

// recordWait is how long a version waits for its record: pages fold the log up to the version.
const recordWait = 5 * time.Second

// followChain copies versions until an error.
func (m *Mirror) followChain(ctx context.Context, chain Chain) error {
	if err := m.fill(ctx, chain); err != nil {
		return err
	}
	f, err := chain.Follow(ctx)
	if err != nil {
		return err
	}
	defer f.Close()
	if !m.chainWhole.Swap(true) {
		m.wakeBlobs()
	}
	for {
		have, err := m.latest(ctx)
		if err != nil {
			return err
		}
		links, err := f.Next(ctx, have.Version(), have.Snapshot.Root())
		var mismatch *store.MismatchError
		if errors.As(err, &mismatch) {
			continue // a builder begins an epoch
		}
		if err != nil {
			return err
		}
		for _, u := range links {
			if prev, root := store.PreviousOf(u.Manifest); prev != have.Version() || root != have.Snapshot.Root() {
				if err := m.fill(ctx, chain); err != nil {
					return err
				}
				break
			}
			bound, cancel := context.WithTimeout(ctx, recordWait)
			_ = m.log.Wait(bound, store.VersionOf(u.Manifest.GetVersion()).Seq) // else the page says what it lacks
			cancel()
			next := store.Stored{Manifest: u.Manifest, Snapshot: have.Snapshot.With(u.Delta)}
			if err := m.commit(ctx, have, next); err != nil {
				return err
			}
			have = next
		}
	}
}

// latest returns the newest version of the copy, zero if there is none.
func (m *Mirror) latest(ctx context.Context) (store.Stored, error) {
	have, err := m.versions.Latest(ctx)
	if errors.Is(err, store.ErrEmpty) {
		err = nil
	}
	return have, err
}

// fill copies all versions that the chain has and the copy lacks, the oldest first.
func (m *Mirror) fill(ctx context.Context, chain Chain) error {
	have, err := m.latest(ctx)
	if err != nil {
		return err
	}
	for u, err := range chain.Updates(ctx, have.Version()) {
		if err != nil {
			return err
		}
		v := store.VersionOf(u.Manifest.GetVersion())
		if !have.Version().Less(v) {
			continue
		}
		next := store.Stored{Manifest: u.Manifest}
		if prev, root := store.PreviousOf(u.Manifest); have.Manifest != nil && prev == have.Version() && root == have.Snapshot.Root() {
			next.Snapshot = have.Snapshot.With(u.Delta)
		} else {
			whole, err := chain.Fetch(ctx, v)
			if errors.Is(err, store.ErrNotFound) {
				continue // it is older than the oldest checkpoint
			}
			if err != nil {
				return err
			}
			next.Snapshot = whole.Snapshot
		}
		if err := m.commit(ctx, have, next); err != nil {
			return err
		}
		have = next
	}
	return nil
}

func (m *Mirror) commit(ctx context.Context, have, next store.Stored) error {
	if root := next.Snapshot.Root(); root != store.RootOf(next.Manifest) {
		return fmt.Errorf("version %s has root %s: %w", next.Version(), root, store.ErrCorrupt)
	}
	err := m.versions.Commit(ctx, have.Version(), store.Commit{
		Manifest: next.Manifest, Snapshot: next.Snapshot, Delta: store.Diff(have.Snapshot, next.Snapshot),
	})
	if err != nil {
		return err
	}
	if at := checkpointAt(next.Manifest); !at.IsZero() && at != checkpointAt(have.Manifest) {
		m.wakeBlobs()
	}
	if m.OnVersion != nil {
		m.OnVersion(next.Manifest)
	}
	return nil
}

func checkpointAt(m *store.Manifest) ident.Position {
	return store.VersionOf(m.GetFoldCheckpoint().GetVersion())
}

func (m *Mirror) wakeBlobs() {
	select {
	case m.blobs <- struct{}{}:
	default:
	}
}

// followBlobs copies the blobs that folding needs, whenever there may be others.
func (m *Mirror) followBlobs(ctx context.Context, chain Chain) error {
	for {
		if m.logWhole.Load() && m.chainWhole.Load() {
			if err := m.copyBlobs(ctx, chain); err != nil {
				m.wakeBlobs()
				return err
			}
			m.blobsWhole.Store(true)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-m.blobs:
		}
	}
}

// copyBlobs copies the bases of the segments on the log and the newest checkpoints of folds, as
// far as there is room, and removes all other blobs. What the chain has lost is left out: the
// log is folded from elsewhere then.
func (m *Mirror) copyBlobs(ctx context.Context, chain Chain) error {
	c := copier{Mirror: m, chain: chain, keep: map[ident.Hash]bool{}}
	for r, err := range m.log.Find(ctx, events.SegmentSubject) {
		if err != nil {
			return err
		}
		g, ok := r.Record().Event.Body.(*events.Segment)
		if !ok || g.Base.IsZero() {
			continue
		}
		b, err := c.blob(ctx, g.Base)
		if err != nil {
			return err
		}
		if b == nil {
			continue
		}
		base, err := store.DecodeCheckpoint(b)
		if err == nil {
			err = c.chunks(ctx, base)
		}
		if err != nil {
			return err
		}
	}
	first := m.Bounds().First
	seen := map[ident.Position]bool{}
	for manifest, err := range m.versions.Manifests(ctx) {
		if err != nil {
			return err
		}
		at := checkpointAt(manifest)
		if at.IsZero() || seen[at] {
			continue
		}
		seen[at] = true
		if at.Seq+1 < first || !c.room() {
			break
		}
		if err := c.chunks(ctx, manifest.GetFoldCheckpoint()); err != nil {
			return err
		}
	}
	return m.log.KeepBlobs(c.keep)
}

// copier copies blobs, and remembers which ones are needed.
type copier struct {
	*Mirror
	chain Chain
	keep  map[ident.Hash]bool
	bytes int64
}

// room reports whether blobs may take more.
func (c *copier) room() bool {
	most := c.log.Limits().Bytes / 2
	return len(c.keep) == 0 || most == 0 || c.bytes < most
}

func (c *copier) chunks(ctx context.Context, checkpoint *snapshotv1.Checkpoint) error {
	for _, ref := range checkpoint.GetChunks() {
		h, err := store.HashFrom(ref.GetHash())
		if err == nil {
			_, err = c.blob(ctx, h)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// blob returns a blob, which the copy has then; nil if the chain has lost it.
func (c *copier) blob(ctx context.Context, h ident.Hash) ([]byte, error) {
	b, err := c.log.GetBlob(ctx, h)
	if err != nil {
		b, err = c.chain.GetBlob(ctx, h)
		if errors.Is(err, store.ErrNotFound) {
			return nil, nil
		}
		if err == nil {
			_, err = c.log.PutBlob(ctx, b)
		}
	}
	if err == nil && !c.keep[h] {
		c.keep[h] = true
		c.bytes += int64(len(b))
	}
	return b, err
}
