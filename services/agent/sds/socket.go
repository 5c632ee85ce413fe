package sds

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"slices"
)

// Listen opens the socket at path for the processes with one of these user ids. Its file
// has mode 0600 and belongs to owner, unless owner is this process's own user. A file of an
// earlier process is replaced.
func Listen(path string, owner int, uids []int, log *slog.Logger) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&fs.ModeSocket == 0 {
			return nil, fmt.Errorf("%s is there and is no socket: give another directory", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	l, err := listenPrivate(path)
	if err != nil {
		return nil, err
	}
	if owner != os.Geteuid() {
		if err := os.Chown(path, owner, -1); err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	return &listener{l, uids, log}, nil
}

// listener accepts connections of some users only. The mode of the file would do, but for
// root, and for a directory whose files another process may replace.
type listener struct {
	*net.UnixListener

	uids []int
	log  *slog.Logger
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		uid, err := peer(c)
		if err == nil && slices.Contains(l.uids, uid) {
			return c, nil
		}
		l.log.Warn("refused a process that asks for the certificate of the workload: it is of another user", "uid", uid, "allowed", l.uids, "error", err)
		_ = c.Close()
	}
}
