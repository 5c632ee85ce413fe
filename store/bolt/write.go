package bolt

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"go.etcd.io/bbolt"

	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

// Commit implements store.Writer in one transaction, synced to the disk.
func (s *Store) Commit(ctx context.Context, prev ident.Position, c store.Commit) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	v := store.VersionOf(c.Manifest.GetVersion())
	latest := s.last()
	if latest.Version() != prev {
		return fmt.Errorf("commit version %s after %s: the latest is %s: %w", v, prev, latest.Version(), store.ErrConflict)
	}
	if err := c.Check(latest); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	gone, kept := s.plan(c.Manifest)
	err := s.update(ctx, func(tx *bbolt.Tx) error { return write(tx, latest, c, gone) })
	if err != nil {
		err = fmt.Errorf("commit version %s: %w", v, err)
		if _, none := s.manifest(context.WithoutCancel(ctx), v); none != nil {
			return err
		}
		// The disk failed after the file had the version, so the commit holds.
	}
	s.mu.Lock()
	s.kept = kept
	s.latest = store.Stored{Manifest: c.Manifest, Snapshot: c.Snapshot}
	s.mu.Unlock()
	return err
}

// plan returns the versions that the commit of m removes, and those that stay.
func (s *Store) plan(m *store.Manifest) (gone, stay []kept) {
	latest := keptOf(m)
	stay = append(slices.Clone(s.kept), latest)
	n := 0
	for !s.retention.Keeps(len(stay)-1-n, latest.time.Sub(stay[n].time)) {
		n++
	}
	return stay[:n], stay[n:]
}

func write(tx *bbolt.Tx, latest store.Stored, c store.Commit, gone []kept) error {
	rows := tx.Bucket(rowsBucket)
	if err := apply(c.Delta, rows.Put, rows.Delete); err != nil {
		return err
	}
	if err := changeSide(tx, c.Side); err != nil {
		return fmt.Errorf("side table: %w", err)
	}
	return writeVersion(tx, latest, c, gone)
}

// writeVersion adds the manifest and the delta back to latest, and removes the
// versions in gone, oldest first.
func writeVersion(tx *bbolt.Tx, latest store.Stored, c store.Commit, gone []kept) error {
	versions, undo := change(tx, versionsBucket), change(tx, undoBucket)
	key := versionKey(store.VersionOf(c.Manifest.GetVersion()))
	b, err := store.EncodeManifest(c.Manifest)
	if err != nil {
		return err
	}
	if err := versions.put(key, b); err != nil {
		return err
	}
	if latest.Manifest != nil {
		back, err := store.EncodeDelta(store.Diff(c.Snapshot, latest.Snapshot))
		if err != nil {
			return err
		}
		if err := undo.put(key, back); err != nil {
			return err
		}
	}
	for _, k := range gone {
		if err := versions.remove(versionKey(k.version)); err != nil {
			return err
		}
	}
	if len(gone) > 0 {
		if err := forgetBack(versions.bucket, undo); err != nil {
			return err
		}
	}
	if err := versions.done(); err != nil {
		return err
	}
	return undo.done()
}

// forgetBack removes the deltas that lead back to removed versions: that of the
// oldest version that stays, and all older ones.
func forgetBack(versions *bbolt.Bucket, undo *changer) error {
	oldest, _ := versions.Cursor().First()
	oldest = bytes.Clone(oldest)
	for {
		k, _ := undo.bucket.Cursor().First()
		if k == nil || bytes.Compare(k, oldest) > 0 {
			return nil
		}
		if err := undo.remove(bytes.Clone(k)); err != nil {
			return err
		}
	}
}

// SaveSide implements store.Writer.
func (s *Store) SaveSide(ctx context.Context, d store.Delta) error {
	if err := d.Check(); err != nil {
		return fmt.Errorf("save the side table: %w", err)
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.update(ctx, func(tx *bbolt.Tx) error { return changeSide(tx, d) }); err != nil {
		return fmt.Errorf("save the side table: %w", err)
	}
	return nil
}

// ClearSide implements store.Writer.
func (s *Store) ClearSide(ctx context.Context) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	err := s.update(ctx, func(tx *bbolt.Tx) error {
		if err := tx.DeleteBucket(sideBucket); err != nil {
			return err
		}
		if _, err := tx.CreateBucket(sideBucket); err != nil {
			return err
		}
		return tx.Bucket(metaBucket).Delete(sideBucket)
	})
	if err != nil {
		return fmt.Errorf("clear the side table: %w", err)
	}
	return nil
}
