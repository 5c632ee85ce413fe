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
	f, err := openLocked(dir, os.O_RDWR|os.O_CREATE, syscall.LOCK_EX)
	if err != nil {
		return nil, err
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return f, nil
}

// shareDir prevents that a server takes the data directory until the result is
// closed, and changes nothing there. A directory without a lock file never had a
// server.
func shareDir(dir string) (io.Closer, error) {
	f, err := openLocked(dir, os.O_RDONLY, syscall.LOCK_SH)
	if errors.Is(err, fs.ErrNotExist) {
		return io.NopCloser(nil), nil
	}
	if err != nil {
		return nil, err
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

// openLocked opens and locks the lock file of a data directory.
func openLocked(dir string, flags, lock int) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), lock|syscall.LOCK_NB)
	if err == nil {
		return f, nil
	}
	defer f.Close()
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	owner, _ := io.ReadAll(io.LimitReader(f, 64)) // best effort, for the text
	return nil, fmt.Errorf("data directory %s: %w (process %s); stop it, or give another directory",
		dir, ErrInUse, strings.TrimSpace(string(owner)))
}
