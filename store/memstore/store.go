// Package memstore keeps versions, and the version chain, in memory, for tests and
// simulations. Only Watch and Follower.Next block, and there are no goroutines, so
// a single thread can drive it deterministically.
package memstore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"

	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
	"meshlog.dev/store/internal/watch"
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
	hub       watch.Hub

	mu     sync.Mutex
	closed bool
}

// Open opens the store in f. If two stores are open on one File, both see all
// commits, but each watches only its own.
func Open(f *File, r store.Retention) *Store {
	s := &Store{file: f, retention: r}
	if latest, ok := f.latest(); ok {
		s.hub.Send(latest.Version())
	}
	return s
}

func (f *File) latest() (store.Stored, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.versions) == 0 {
		return store.Stored{}, false
	}
	return f.versions[len(f.versions)-1], true
}

var errClosed = errors.New("the store is closed")

func (s *Store) check(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	return ctx.Err()
}

// Commit implements store.Writer.
func (s *Store) Commit(ctx context.Context, prev ident.Position, c store.Commit) error {
	v := store.VersionOf(c.Manifest.GetVersion())
	if err := s.check(ctx); err != nil {
		return fmt.Errorf("commit version %s: %w", v, err)
	}
	f := s.file
	f.mu.Lock()
	defer f.mu.Unlock()
	var latest store.Stored
	if n := len(f.versions); n > 0 {
		latest = f.versions[n-1]
	}
	if latest.Version() != prev {
		return fmt.Errorf("commit version %s after %s: the latest is %s: %w", v, prev, latest.Version(), store.ErrConflict)
	}
	if err := c.Check(latest); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	f.versions = append(f.versions, store.Stored{Manifest: c.Manifest, Snapshot: c.Snapshot})
	f.side = f.side.With(c.Side)
	f.drop(s.retention)
	s.hub.Send(v)
	return nil
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
	if err := s.check(ctx); err != nil {
		return fmt.Errorf("save the side table: %w", err)
	}
	if err := d.Check(); err != nil {
		return fmt.Errorf("save the side table: %w", err)
	}
	s.file.mu.Lock()
	defer s.file.mu.Unlock()
	s.file.side = s.file.side.With(d)
	return nil
}

// ClearSide implements store.Writer.
func (s *Store) ClearSide(ctx context.Context) error {
	if err := s.check(ctx); err != nil {
		return fmt.Errorf("clear the side table: %w", err)
	}
	s.file.mu.Lock()
	defer s.file.mu.Unlock()
	s.file.side = nil
	return nil
}

// Latest implements store.Reader.
func (s *Store) Latest(ctx context.Context) (store.Stored, error) {
	if err := s.check(ctx); err != nil {
		return store.Stored{}, fmt.Errorf("read the latest version: %w", err)
	}
	if latest, ok := s.file.latest(); ok {
		return latest, nil
	}
	return store.Stored{}, store.ErrEmpty
}

// At implements store.Reader.
func (s *Store) At(ctx context.Context, v ident.Position) (store.Stored, error) {
	if err := s.check(ctx); err != nil {
		return store.Stored{}, fmt.Errorf("read version %s: %w", v, err)
	}
	s.file.mu.Lock()
	defer s.file.mu.Unlock()
	for _, stored := range s.file.versions {
		if stored.Version() == v {
			return stored, nil
		}
	}
	return store.Stored{}, fmt.Errorf("read version %s: %w", v, store.ErrNotFound)
}

// Manifests implements store.Reader.
func (s *Store) Manifests(ctx context.Context) iter.Seq2[*store.Manifest, error] {
	return func(yield func(*store.Manifest, error) bool) {
		if err := s.check(ctx); err != nil {
			yield(nil, fmt.Errorf("list versions: %w", err))
			return
		}
		for _, stored := range slices.Backward(s.file.Clone().versions) {
			if !yield(stored.Manifest, nil) {
				return
			}
		}
	}
}

// Watch implements store.Reader.
func (s *Store) Watch(ctx context.Context) <-chan ident.Position { return s.hub.Watch(ctx) }

// Side implements store.Reader.
func (s *Store) Side(ctx context.Context) iter.Seq2[store.Row, error] {
	return func(yield func(store.Row, error) bool) {
		if err := s.check(ctx); err != nil {
			yield(store.Row{}, fmt.Errorf("read the side table: %w", err))
			return
		}
		rows := slices.SortedFunc(s.file.Clone().side.Rows(), func(a, b store.Row) int { return strings.Compare(a.Key, b.Key) })
		for _, row := range rows {
			if !yield(row, nil) {
				return
			}
		}
	}
}

// Close implements store.Store.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}
