//go:build unix

package ca

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// lock locks a file for this process, against other replicas that share it, until unlock
// is called. The kernel releases the lock when the process dies.
func lock(path string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		return nil, fmt.Errorf("states of the roots: %w; give a file in a directory that this process may write with --roots-file", err)
	}
	return func() { f.Close() }, nil
}
