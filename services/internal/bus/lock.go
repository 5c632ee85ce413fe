package bus

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// ErrInUse reports that another process uses the data directory.
var ErrInUse = errors.New("in use by another process")

// lockName is the name of the lock file within a data directory.
const lockName = "lock"

// lockDir locks the data directory for this process until the file is closed; the
// kernel releases the lock when the process dies. DATA/lock names the owner.
func lockDir(dir string) (*os.File, error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		return nil, lockError(dir, f, err)
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// shareDir prevents that a server takes the data directory until the result is
// closed, and changes nothing there. A directory without a lock file never had a
// server.
func shareDir(dir string) (io.Closer, error) {
	f, err := os.Open(filepath.Join(dir, lockName))
	if errors.Is(err, fs.ErrNotExist) {
		return io.NopCloser(nil), nil
	}
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err != nil {
		defer f.Close()
		return nil, lockError(dir, f, err)
	}
	return f, nil
}

// Running reports whether a process uses the data directory.
func Running(dir string) (bool, error) {
	lock, err := shareDir(dir)
	if errors.Is(err, ErrInUse) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return false, lock.Close()
}

// lockError explains the error of locking dir.
func lockError(dir string, f *os.File, err error) error {
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	owner, _ := io.ReadAll(io.LimitReader(f, 64)) // best effort, for the text
	return fmt.Errorf("data directory %s: %w (process %s); stop it, or give another directory",
		dir, ErrInUse, strings.TrimSpace(string(owner)))
}
