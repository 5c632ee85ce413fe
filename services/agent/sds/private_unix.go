//go:build unix

package sds

import (
	"net"
	"os"
	"path/filepath"
)

// listenPrivate opens a socket whose file is never open to others: it gets its name after
// its mode.
func listenPrivate(path string) (*net.UnixListener, error) {
	dir, err := os.MkdirTemp(filepath.Dir(path), ".sds-") // 0700
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	tmp := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: tmp, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	for _, step := range []func() error{
		func() error { return os.Chmod(tmp, 0o600) },
		func() error { return os.Rename(tmp, path) },
	} {
		if err := step(); err != nil {
			_ = l.Close()
			return nil, err
		}
	}
	return l, nil
}
