package bus

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/minio/highwayhash"
	"github.com/nats-io/nats-server/v2/server"
)

// CopyOptions say what StartCopy copies.
type CopyOptions struct {
	// Dir is the data directory of a server that has ended.
	Dir string
	// Progress, if not nil, is called with the bytes that were copied, and with
	// how many there are.
	Progress func(done, total int64)
	Log      *slog.Logger
}

// ErrNoStreams says that a data directory is not one of a server.
var ErrNoStreams = errors.New("holds no streams")

// StartCopy copies the streams that a server left in a data directory, and
// starts a server on the copy, for connections of this process only. In the
// copy nothing expires, however long ago the server has ended. Close removes
// it. The errors are ErrInUse while a process has the directory, and
// ErrNoStreams where there is nothing to copy.
func StartCopy(o CopyOptions) (_ *Server, err error) {
	from := filepath.Join(o.Dir, streamsDir)
	if _, err := os.Stat(from); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", o.Dir, ErrNoStreams)
	}
	lock, err := shareDir(o.Dir)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	tmp, err := os.MkdirTemp("", "meshlog-copy-")
	if err != nil {
		return nil, fmt.Errorf("copy %s: %w", from, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(tmp))
		}
	}()
	c := copier{CopyOptions: o, from: from, to: filepath.Join(tmp, streamsDir)}
	if err := c.copy(); err != nil {
		return nil, fmt.Errorf("copy %s to %s: %w", from, tmp, err)
	}
	s, err := StartServer(ServerOptions{Dir: tmp, Log: o.Log})
	if err != nil {
		return nil, err
	}
	s.temporary = tmp
	return s, nil
}

// copier copies a server's directory, in two walks: for the size, and to copy.
type copier struct {
	CopyOptions
	from, to    string
	done, total int64
}

func (c *copier) copy() error {
	err := c.walk(func(_ string, d fs.DirEntry) error {
		info, err := d.Info()
		if err == nil {
			c.total += info.Size()
		}
		return err
	})
	if err != nil {
		return err
	}
	err = c.walk(c.file)
	if errors.Is(err, syscall.ENOSPC) {
		err = fmt.Errorf("%w; it takes %d MiB: name a directory with more room by TMPDIR", err, c.total>>20)
	}
	return err
}

// walk hands on the files of streams. Leases and consumers of a server that has
// ended say nothing.
func (c *copier) walk(file func(path string, d fs.DirEntry) error) error {
	return filepath.WalkDir(c.from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		inStreams := filepath.Base(filepath.Dir(path)) == "streams"
		inStream := filepath.Base(filepath.Dir(filepath.Dir(path))) == "streams"
		switch {
		case d.IsDir() && inStreams && strings.HasPrefix(d.Name(), "KV_"), d.IsDir() && inStream && d.Name() == "obs":
			return fs.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		return file(path, d)
	})
}

func (c *copier) file(path string, d fs.DirEntry) error {
	rel, err := filepath.Rel(c.from, path)
	if err != nil {
		return err
	}
	to := filepath.Join(c.to, rel)
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	switch d.Name() {
	case server.JetStreamMetaFileSum: // written with the file that it is of
		return nil
	case server.JetStreamMetaFile:
		return copySettings(to, path, 0)
	}
	n, err := copyFile(to, path)
	c.done += n
	if c.Progress != nil {
		c.Progress(c.done, c.total)
	}
	return err
}

func copyFile(to, from string) (n int64, err error) {
	in, err := os.Open(from)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, err
	}
	n, err = io.Copy(out, in)
	return n, errors.Join(err, out.Close())
}

// copySettings copies the settings of a stream, but for the age at which
// messages expire, 0 for never: a server drops what is too old as soon as it
// starts. The server takes settings only with their checksum, keyed by the
// stream's name.
func copySettings(to, from string, maxAge time.Duration) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	var settings map[string]json.RawMessage
	if err := json.Unmarshal(b, &settings); err != nil {
		return fmt.Errorf("settings of a stream, %s: %w", from, err)
	}
	settings["max_age"] = json.RawMessage(strconv.FormatInt(int64(maxAge), 10))
	if b, err = json.Marshal(settings); err != nil {
		return fmt.Errorf("settings of a stream, %s: %w", from, err)
	}
	key := sha256.Sum256([]byte(filepath.Base(filepath.Dir(from))))
	sum, err := highwayhash.NewDigest64(key[:])
	if err != nil {
		return fmt.Errorf("settings of a stream, %s: %w", from, err)
	}
	if _, err := sum.Write(b); err != nil {
		return fmt.Errorf("settings of a stream, %s: %w", from, err)
	}
	if err := os.WriteFile(to, b, 0o600); err != nil {
		return err
	}
	file := filepath.Join(filepath.Dir(to), server.JetStreamMetaFileSum)
	return os.WriteFile(file, []byte(hex.EncodeToString(sum.Sum(nil))), 0o600)
}
