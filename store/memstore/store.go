// Package memstore keeps versions, and the version chain, in memory, for tests and
// simulations. Only Follower.Next blocks, and there are no goroutines, so a single
// thread can drive it deterministically.
package memstore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"

	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

// File is the state that survives the process of a Store. The zero File is empty.
// To lose a file, open a new one; to restore an older state, open a Clone.
type File struct {
	mu       sync.Mutex
	versions []store.Stored // oldest first
	side     *store.Snapshot
}

// Clone returns a copy of the file. Its values are immutable, so a copy is cheap.
func (f *File) Clone() *File {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &File{versions: slices.Clone(f.versions), side: f.side}
}

// Store is a store over a File. It implements store.Store.
type Store struct {
	file      *File
	retention store.Retention
	closed    bool // guarded by file.mu
}

// Open opens the store in f. If two stores are open on one File, both see all
// commits.
func Open(f *File, r store.Retention) *Store { return &Store{file: f, retention: r} }

var errClosed = errors.New("the store is closed")

// do runs act on the file, unless ctx has ended or the store is closed.
func (s *Store) do(ctx context.Context, what string, act func(f *File) error) error {
	s.file.mu.Lock()
	defer s.file.mu.Unlock()
	err := ctx.Err()
	if s.closed {
		err = errClosed
	}
	if err == nil {
		err = act(s.file)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// Commit implements store.Writer.
func (s *Store) Commit(ctx context.Context, prev ident.Position, c store.Commit) error {
	v := store.VersionOf(c.Manifest.GetVersion())
	return s.do(ctx, "commit version "+v.String(), func(f *File) error {
		latest := f.latest()
		if latest.Version() != prev {
			return fmt.Errorf("after %s: the latest is %s: %w", prev, latest.Version(), store.ErrConflict)
		}
		if err := c.Check(latest); err != nil {
			return err
		}
		f.versions = append(f.versions, store.Stored{Manifest: c.Manifest, Snapshot: c.Snapshot})
		f.side = f.side.With(c.Side)
		f.drop(s.retention)
		return nil
	})
}

// latest returns the newest version, zero if there is none.
func (f *File) latest() store.Stored {
	if len(f.versions) == 0 {
		return store.Stored{}
	}
	return f.versions[len(f.versions)-1]
}

// drop removes the versions that r does not keep.
func (f *File) drop(r store.Retention) {
	last := len(f.versions) - 1
	latest := f.versions[last].Manifest.GetRecordTime().AsTime()
	first := 0
	for !r.Keeps(last-first, latest.Sub(f.versions[first].Manifest.GetRecordTime().AsTime())) {
		first++
	}
	f.versions = slices.Delete(f.versions, 0, first)
}

// SaveSide implements store.Writer.
func (s *Store) SaveSide(ctx context.Context, d store.Delta) error {
	return s.do(ctx, "save the side table", func(f *File) error {
		if err := d.Check(); err != nil {
			return err
		}
		f.side = f.side.With(d)
		return nil
	})
}

// ClearSide implements store.Writer.
func (s *Store) ClearSide(ctx context.Context) error {
	return s.do(ctx, "clear the side table", func(f *File) error {
		f.side = nil
		return nil
	})
}

// Latest implements store.Reader.
func (s *Store) Latest(ctx context.Context) (latest store.Stored, err error) {
	err = s.do(ctx, "read the latest version", func(f *File) error {
		if latest = f.latest(); latest.Manifest == nil {
			return store.ErrEmpty
		}
		return nil
	})
	return latest, err
}

// At implements store.Reader.
func (s *Store) At(ctx context.Context, v ident.Position) (at store.Stored, err error) {
	err = s.do(ctx, "read version "+v.String(), func(f *File) error {
		i := slices.IndexFunc(f.versions, func(s store.Stored) bool { return s.Version() == v })
		if i < 0 {
			return store.ErrNotFound
		}
		at = f.versions[i]
		return nil
	})
	return at, err
}

// Manifests implements store.Reader.
func (s *Store) Manifests(ctx context.Context) iter.Seq2[*store.Manifest, error] {
	return func(yield func(*store.Manifest, error) bool) {
		var versions []store.Stored
		err := s.do(ctx, "list versions", func(f *File) error {
			versions = slices.Clone(f.versions)
			return nil
		})
		if err != nil {
			yield(nil, err)
			return
		}
		for _, stored := range slices.Backward(versions) {
			if !yield(stored.Manifest, nil) {
				return
			}
		}
	}
}

// Side implements store.Reader.
func (s *Store) Side(ctx context.Context) iter.Seq2[store.Row, error] {
	return func(yield func(store.Row, error) bool) {
		var side *store.Snapshot
		err := s.do(ctx, "read the side table", func(f *File) error {
			side = f.side
			return nil
		})
		if err != nil {
			yield(store.Row{}, err)
			return
		}
		for _, row := range store.Diff(nil, side).Put { // sorted by key
			if !yield(row, nil) {
				return
			}
		}
	}
}

// Close implements store.Store.
func (s *Store) Close() error {
	s.file.mu.Lock()
	defer s.file.mu.Unlock()
	s.closed = true
	return nil
}
