package frontend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/keys"
)

const (
	// localField is the part of a credential that a directory of credentials has as a
	// private key.
	localField = "tls.key"
	// maxLocal is the largest file that is read, as a watcher does.
	maxLocal = 1 << 20
)

// local reads private keys from the directory that this machine shares with a file watcher,
// NAMESPACE/NAME/tls.key as there (KEY-7). It has the keys of that watcher's shard only:
// another source may copy an HMAC from the log.
type local struct {
	dir   string
	shard ident.Shard
}

// read returns a key; nil: the directory has none. The store checks that it is the wanted
// one.
func (l local) read(_ context.Context, k keys.Key) ([]byte, error) {
	if k.Shard != l.shard || k.Field != localField || !isFileName(k.Namespace) || !isFileName(k.Name) {
		return nil, nil
	}
	content, err := readPrivate(filepath.Join(l.dir, k.Namespace, k.Name, localField))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return content, err
}

// isFileName reports whether a name is one of a file in a directory, and not a path.
func isFileName(name string) bool {
	return filepath.IsLocal(name) && name != "." && !strings.ContainsAny(name, `/\`)
}

// readPrivate reads a file that only its owner may read.
func readPrivate(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no regular file", path)
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("%s holds a key, and group or others may read it, or write it; run: chmod 600 '%s'", path, path)
	case info.Size() > maxLocal:
		return nil, fmt.Errorf("%s has %d bytes, want %d at most", path, info.Size(), maxLocal)
	}
	content := make([]byte, info.Size())
	if _, err := io.ReadFull(f, content); err != nil {
		clear(content)
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return content, nil
}
