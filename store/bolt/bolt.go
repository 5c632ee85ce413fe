// Package bolt keeps versions in one bbolt file. The file is a cache: what is
// in it was published before, and one that is damaged is set aside, not mended.
//
// On Open every page and every row is checked, the content by its Merkle root,
// the rest by digests. The latest version is kept in memory as well, so that
// reading it does no IO, and that it is served on when the disk fails.
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
	"meshlog.dev/store/internal/watch"
)

// lockTimeout is how long Open waits for another process to let go.
const lockTimeout = time.Second

// Options say how a file is kept.
type Options struct {
	// Retention says which versions are kept.
	Retention store.Retention
}

// Store is a store in a file. It implements store.Store.
type Store struct {
	retention store.Retention
	path      string
	file      *os.File // the one that db works on
	db        *bbolt.DB
	hub       watch.Hub

	writing sync.Mutex // held while a change is made; protects kept
	kept    []kept     // the versions in the file, oldest first

	mu     sync.Mutex // protects what follows
	latest store.Stored
	broken error // why db must not be touched any more
	closed bool
}

var errClosed = errors.New("the store is closed")

// Open opens the store at path, or makes one. A file that is damaged is set
// aside, and the store begins anew: then, and only then, the Discarded is not
// nil. The error is a store.ErrLocked while another process has the file.
func Open(path string, o Options) (*Store, *Discarded, error) {
	s, err := open(path, o)
	var bad damage
	if !errors.As(err, &bad) {
		return s, nil, err
	}
	d := &Discarded{Path: path + discardedSuffix, Reason: bad.reason}
	if err := os.Rename(path, d.Path); err != nil {
		return nil, nil, fmt.Errorf("open %s: it is damaged (%w), and cannot be set aside: %w", path, bad.reason, err)
	}
	if s, err = open(path, o); err != nil {
		return nil, d, err
	}
	return s, d, nil
}

// discardedSuffix is added to the name of a file that is set aside. The one set
// aside before is lost, so that they do not fill the disk.
const discardedSuffix = ".damaged"

// Discarded says that a file was set aside.
type Discarded struct {
	// Path is where it is now.
	Path string
	// Reason says what was wrong with it.
	Reason error
}

// String implements fmt.Stringer.
func (d *Discarded) String() string {
	return fmt.Sprintf("the file was damaged, and is now %s: %v", d.Path, d.Reason)
}

// damage is an error that lies in what the file says.
type damage struct{ reason error }

func (d damage) Error() string { return d.reason.Error() }
func (d damage) Unwrap() error { return d.reason }

// open opens the file if it is whole.
func open(path string, o Options) (*Store, error) {
	if err := check(path); err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	s := &Store{retention: o.Retention, path: path}
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
	if v := s.latest.Version(); !v.IsZero() {
		s.hub.Send(v)
	}
	return s, nil
}

// options of bbolt; they keep hold of the file that it opens.
func (s *Store) options(readOnly bool) *bbolt.Options {
	return &bbolt.Options{
		Timeout:      lockTimeout,
		FreelistType: bbolt.FreelistMapType,
		ReadOnly:     readOnly,
		OpenFile: func(name string, flag int, mode os.FileMode) (f *os.File, err error) {
			f, err = os.OpenFile(name, flag, mode)
			s.file = f
			return f, err
		},
	}
}

// check sees that bbolt can walk the file, if there is one, while nobody
// writes to it. Read-only, bbolt itself reads no more than the meta pages.
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

// openError returns what is wrong with the file from what is wrong with the
// machine.
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

// guard runs f, which works on a mapped file: where the file has become
// shorter, or a page is not what it should be, that is an error and not the
// end of the process.
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

// view runs f in a read transaction. It must be short: while it runs, the file
// cannot grow. Nothing that f is given may be kept.
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

// ready returns why the file cannot be used.
func (s *Store) ready(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return errClosed
	case s.broken != nil:
		return fmt.Errorf("%w (found before; it is used no more until it is opened again)", s.broken)
	}
	return ctx.Err()
}

// seeBroken marks the file as one not to be used if err is a panic: bbolt may
// have left its locks locked.
func (s *Store) seeBroken(err error) error {
	var p panicked
	if errors.As(err, &p) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.broken = err
	}
	return err
}

// Close implements store.Store. It waits for what is running.
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

// abandon lets go of the file, and of its lock, without bbolt's help. The
// mapping stays: it is not known who holds a part of it.
func (s *Store) abandon() {
	if s.file != nil {
		unlock(s.file)
		s.file.Close()
	}
}
