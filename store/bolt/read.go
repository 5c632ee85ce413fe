package bolt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

// load makes the buckets of a new file, or reads and checks all of an existing
// one. An error in the content is a damage.
func (s *Store) load() error {
	fresh := false
	err := guard(func() error {
		return s.db.View(func(tx *bbolt.Tx) (err error) {
			if k, _ := tx.Cursor().First(); k == nil {
				fresh = true
				return nil
			}
			if err := checkFormat(tx); err != nil {
				return err
			}
			for _, name := range digested {
				if err := checkDigest(tx, name); err != nil {
					return err
				}
			}
			if s.kept, err = readKept(tx); err != nil {
				return err
			}
			s.latest, err = readLatest(tx)
			return err
		})
	})
	if err != nil {
		return damage{err}
	}
	if !fresh {
		return nil
	}
	return guard(func() error { return s.db.Update(makeBuckets) })
}

func makeBuckets(tx *bbolt.Tx) error {
	for _, name := range append([][]byte{rowsBucket, metaBucket}, digested...) {
		if _, err := tx.CreateBucket(name); err != nil {
			return fmt.Errorf("make bucket %s: %w", name, err)
		}
	}
	return tx.Bucket(metaBucket).Put(formatKey, []byte(format))
}

func checkFormat(tx *bbolt.Tx) error {
	b := tx.Bucket(metaBucket)
	if b == nil {
		return errors.New("it is not a store")
	}
	if got := b.Get(formatKey); string(got) != format {
		return fmt.Errorf("its format is %q, this build reads %q", got, format)
	}
	return nil
}

func checkDigest(tx *bbolt.Tx, name []byte) error {
	bucket := tx.Bucket(name)
	if bucket == nil {
		return fmt.Errorf("bucket %s is missing", name)
	}
	var got, want digest
	copy(want[:], tx.Bucket(metaBucket).Get(name))
	err := bucket.ForEach(func(k, v []byte) error {
		got.flip(k, v)
		return nil
	})
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("bucket %s: %w", name, store.ErrCorrupt)
	}
	return nil
}

// kept is the part of a version that retention needs.
type kept struct {
	version ident.Position
	time    time.Time // of its record
}

// readKept reads all manifests.
func readKept(tx *bbolt.Tx) ([]kept, error) {
	var all []kept
	err := tx.Bucket(versionsBucket).ForEach(func(k, v []byte) error {
		m, err := decodeManifest(k, v)
		if err != nil {
			return err
		}
		all = append(all, keptOf(m))
		return nil
	})
	return all, err
}

func keptOf(m *store.Manifest) kept {
	return kept{store.VersionOf(m.GetVersion()), m.GetRecordTime().AsTime()}
}

// readLatest reads the latest version, zero if there is none.
func readLatest(tx *bbolt.Tx) (store.Stored, error) {
	rows := tx.Bucket(rowsBucket)
	if rows == nil {
		return store.Stored{}, fmt.Errorf("bucket %s is missing", rowsBucket)
	}
	var d store.Delta
	err := rows.ForEach(func(k, v []byte) error {
		d.Put = append(d.Put, store.Row{Key: string(k), Value: bytes.Clone(v)})
		return nil
	})
	if err != nil {
		return store.Stored{}, err
	}
	latest := store.Stored{Snapshot: (*store.Snapshot)(nil).With(d)}
	if k, v := tx.Bucket(versionsBucket).Cursor().Last(); k != nil {
		if latest.Manifest, err = decodeManifest(k, v); err != nil {
			return store.Stored{}, err
		}
	}
	return latest, latest.Check()
}

func decodeManifest(k, v []byte) (*store.Manifest, error) {
	m, err := store.DecodeManifest(v)
	if err != nil {
		return nil, fmt.Errorf("version %x: %w", k, err)
	}
	if !bytes.Equal(k, versionKey(store.VersionOf(m.GetVersion()))) {
		return nil, fmt.Errorf("version %x: the manifest is of %s: %w", k, store.VersionOf(m.GetVersion()), store.ErrCorrupt)
	}
	return m, nil
}

// Latest implements store.Reader. It does no IO.
func (s *Store) Latest(ctx context.Context) (store.Stored, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return store.Stored{}, fmt.Errorf("read the latest version: %w", errClosed)
	case ctx.Err() != nil:
		return store.Stored{}, fmt.Errorf("read the latest version: %w", ctx.Err())
	case s.latest.Manifest == nil:
		return store.Stored{}, store.ErrEmpty
	}
	return s.latest, nil
}

func (s *Store) last() store.Stored {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.latest
}

// At implements store.Reader. It undoes one version after the other, from the
// latest on.
func (s *Store) At(ctx context.Context, v ident.Position) (store.Stored, error) {
	at, err := s.at(ctx, v)
	if err != nil {
		return store.Stored{}, fmt.Errorf("read version %s: %w", v, err)
	}
	return at, nil
}

func (s *Store) at(ctx context.Context, v ident.Position) (at store.Stored, err error) {
	latest := s.last()
	var undo [][]byte // newest first
	err = s.view(ctx, func(tx *bbolt.Tx) (err error) {
		if latest.Version().Less(v) {
			return store.ErrNotFound
		}
		if at.Manifest, err = readManifest(tx, v); err != nil {
			return err
		}
		key, from := versionKey(v), versionKey(latest.Version())
		c := tx.Bucket(undoBucket).Cursor()
		k, d := c.Seek(from)
		if !bytes.Equal(k, from) {
			return nil // the latest version is the only one
		}
		for ; bytes.Compare(k, key) > 0; k, d = c.Prev() {
			undo = append(undo, bytes.Clone(d))
		}
		return nil
	})
	if err != nil {
		return at, err
	}
	at.Snapshot = latest.Snapshot
	for _, b := range undo {
		d, err := store.DecodeDelta(b)
		if err != nil {
			return at, fmt.Errorf("%w: %w", store.ErrCorrupt, err)
		}
		at.Snapshot = at.Snapshot.With(d)
	}
	return at, at.Check()
}

// Manifests implements store.Reader. It yields no version that is added or
// removed while it runs.
func (s *Store) Manifests(ctx context.Context) iter.Seq2[*store.Manifest, error] {
	return func(yield func(*store.Manifest, error) bool) {
		if err := s.ready(ctx); err != nil {
			yield(nil, fmt.Errorf("list versions: %w", err))
			return
		}
		s.mu.Lock()
		all := s.kept
		s.mu.Unlock()
		for _, k := range slices.Backward(all) {
			m, err := s.manifest(ctx, k.version)
			if errors.Is(err, store.ErrNotFound) { // removed
				return
			}
			if err != nil {
				yield(nil, fmt.Errorf("list versions: %w", err))
				return
			}
			if !yield(m, nil) {
				return
			}
		}
	}
}

func (s *Store) manifest(ctx context.Context, v ident.Position) (m *store.Manifest, err error) {
	err = s.view(ctx, func(tx *bbolt.Tx) (err error) {
		m, err = readManifest(tx, v)
		return err
	})
	return m, err
}

// readManifest reads the manifest of a version, or returns store.ErrNotFound.
func readManifest(tx *bbolt.Tx, v ident.Position) (*store.Manifest, error) {
	key := versionKey(v)
	b := tx.Bucket(versionsBucket).Get(key)
	if b == nil {
		return nil, store.ErrNotFound
	}
	return decodeManifest(key, b)
}

// Side implements store.Reader. It reads the whole table before it yields the
// first row.
func (s *Store) Side(ctx context.Context) iter.Seq2[store.Row, error] {
	return func(yield func(store.Row, error) bool) {
		var rows []store.Row
		err := s.view(ctx, func(tx *bbolt.Tx) error {
			return tx.Bucket(sideBucket).ForEach(func(k, v []byte) error {
				rows = append(rows, store.Row{Key: string(k), Value: bytes.Clone(v)})
				return nil
			})
		})
		if err != nil {
			yield(store.Row{}, fmt.Errorf("read the side table: %w", err))
			return
		}
		for _, row := range rows {
			if !yield(row, nil) {
				return
			}
		}
	}
}
