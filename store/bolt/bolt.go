// Package bolt keeps versions in one bbolt file. The file is a cache: all its
// versions were published before, so Open sets a damaged file aside instead of
// repairing it.
//
// Open checks every page and every row, the content by its Merkle root and the
// rest by digests. The latest version is in memory as well: reading it needs no
// IO, and works while the disk fails.
package bolt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"meshlog.dev/store"
)

// lockTimeout is how long Open waits for another process to release the file.
const lockTimeout = time.Second

// Store is a store in a file. It implements store.Store.
type Store struct {
	retention store.Retention
	path      string
	file      *os.File // the file under db
	db        *bbolt.DB

	writing sync.Mutex // held during a change

	mu     sync.Mutex // protects what follows
	kept   []kept     // the versions in the file, oldest first; changed while writing is held
	latest store.Stored
	broken error // the reason why db must not be used any more
	closed bool
}

var errClosed = errors.New("the store is closed")

// Open opens the store at path, and creates it if there is none. The store keeps
// the versions that keep selects. If the file is damaged, Open renames it, creates
// an empty store and returns a Discarded; else the Discarded is nil. While another
// process uses the file, the error is store.ErrLocked.
func Open(path string, keep store.Retention) (*Store, *Discarded, error) {
	s, err := open(path, keep)
	var bad damage
	if !errors.As(err, &bad) {
		return s, nil, err
	}
	d := &Discarded{Path: path + discardedSuffix, Reason: bad.reason}
	if err := os.Rename(path, d.Path); err != nil {
		return nil, nil, fmt.Errorf("open %s: it is damaged (%w), and cannot be renamed: %w", path, bad.reason, err)
	}
	if s, err = open(path, keep); err != nil {
		return nil, d, err
	}
	return s, d, nil
}

// discardedSuffix is added to the name of a damaged file. Renaming overwrites an
// earlier damaged file, so that they do not fill the disk.
const discardedSuffix = ".damaged"

// Discarded describes a damaged file that Open renamed.
type Discarded struct {
	// Path is its new name.
	Path string
	// Reason is the damage.
	Reason error
}

// String implements fmt.Stringer.
func (d *Discarded) String() string {
	return fmt.Sprintf("the file was damaged, and was renamed to %s: %v", d.Path, d.Reason)
}

// damage is an error in the content of the file, not in the machine.
type damage struct{ reason error }

func (d damage) Error() string { return d.reason.Error() }
func (d damage) Unwrap() error { return d.reason }

// open opens the file, and fails with a damage if its content is damaged.
func open(path string, keep store.Retention) (*Store, error) {
	if err := check(path); err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	s := &Store{retention: keep, path: path}
	err := guard(func() (err error) {
		s.db, err = bbolt.Open(path, 0o600, s.options(false))
		return err
	})
	if err != nil {
		s.abandon()
		return nil, fmt.Errorf("open %s: %w", path, openError(path, err))
	}
	if err := s.load(); err != nil {
		s.Close()
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	writeOwner(path)
	return s, nil
}

// initialMmapSize is how much of a file is mapped before it has to be mapped again, in bytes.
const initialMmapSize = 1 << 30

// options returns the options of bbolt; they record the file that it opens.
func (s *Store) options(readOnly bool) *bbolt.Options {
	return &bbolt.Options{
		Timeout:      lockTimeout,
		FreelistType: bbolt.FreelistMapType,
		ReadOnly:     readOnly,
		// Each time the file outgrows its map, bbolt copies the nodes of the open transaction.
		// The map takes address space only.
		InitialMmapSize: initialMmapSize,
		OpenFile: func(name string, flag int, mode os.FileMode) (f *os.File, err error) {
			f, err = os.OpenFile(name, flag, mode)
			s.file = f
			return f, err
		},
	}
}

// check checks that bbolt can walk the file, if it exists. It holds bbolt's lock
// for reading, so no process writes meanwhile, and bbolt reads only meta pages.
func check(path string) error {
	switch info, err := os.Stat(path); {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return errors.New("is not a file")
	case info.Size() == 0:
		return nil // its process died before it wrote anything
	}
	s := &Store{path: path}
	defer s.abandon()
	err := guard(func() (err error) {
		s.db, err = bbolt.Open(path, 0o600, s.options(true))
		return err
	})
	if err != nil {
		return openError(path, err)
	}
	defer s.db.Close()
	info, err := s.file.Stat()
	if err != nil {
		return err
	}
	if err := checkPages(s.file, info.Size(), s.db.Info().PageSize); err != nil {
		return openError(path, err)
	}
	return nil
}

// openError returns err as a damage unless the machine caused it.
func openError(path string, err error) error {
	var system interface{ Timeout() bool } // *os.PathError, syscall.Errno
	switch {
	case errors.Is(err, bbolterrors.ErrTimeout):
		return lockedError(path)
	case errors.As(err, &system):
		return err
	}
	return damage{err}
}

// guard runs f, which uses a mapped file. If the file has become shorter or a
// page is damaged, guard returns an error where the process would crash.
func guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = panicked{r}
		}
	}()
	return f()
}

type panicked struct{ value any }

func (p panicked) Error() string { return fmt.Sprintf("the file is damaged: %v", p.value) }
func (p panicked) Unwrap() error { return store.ErrCorrupt }

// view runs f in a read transaction, which must be short, as the file cannot grow
// meanwhile. f must not keep a reference to the bytes that it reads.
func (s *Store) view(ctx context.Context, f func(tx *bbolt.Tx) error) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	return s.seeBroken(guard(func() error { return s.db.View(f) }))
}

// update runs f in a write transaction; the caller holds writing.
func (s *Store) update(ctx context.Context, f func(tx *bbolt.Tx) error) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	return s.seeBroken(guard(func() error { return s.db.Update(f) }))
}

// ready returns the reason why the file cannot be used, nil if it can.
func (s *Store) ready(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return errClosed
	case s.broken != nil:
		return fmt.Errorf("%w (found earlier; the store does not use the file until it is opened again)", s.broken)
	}
	return ctx.Err()
}

// seeBroken marks the file as unusable if err is a panic: bbolt may have left its
// locks locked.
func (s *Store) seeBroken(err error) error {
	var p panicked
	if errors.As(err, &p) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.broken = err
	}
	return err
}

// Close implements store.Store. It waits for running calls.
func (s *Store) Close() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	closed, broken := s.closed, s.broken
	s.closed = true
	s.mu.Unlock()
	switch {
	case closed:
		return nil
	case broken != nil:
		s.abandon()
		return nil
	}
	removeOwner(s.path)
	if err := s.db.Close(); err != nil {
		return fmt.Errorf("close %s: %w", s.path, err)
	}
	return nil
}

// abandon releases the file and its lock without bbolt's help. The mapping
// stays, because a caller may still hold a part of it.
func (s *Store) abandon() {
	if s.file != nil {
		unlock(s.file)
		s.file.Close()
	}
}
