package bus

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/klauspost/compress/s2"
	"github.com/nats-io/nats-server/v2/server"
)

// CopyOptions describe a copy.
type CopyOptions struct {
	// Dir is the data directory of a server that has ended.
	Dir string
	// Progress, if not nil, gets the number of bytes that are copied, and the
	// total.
	Progress func(done, total int64)
	Log      *slog.Logger
}

// ErrNoStreams reports that a data directory is not one of a server.
var ErrNoStreams = errors.New("holds no streams")

// StartCopy starts a server on a copy of the streams in a data directory, for
// connections of this process only. Messages of the copy never expire, however
// long ago the server of the directory ended. StartCopy changes nothing there.
// Close removes the copy. The errors are ErrInUse while a process uses the
// directory, and ErrNoStreams if there is nothing to copy.
//
// A server that starts on a directory drops old messages before any client can
// change max_age. So StartCopy starts a server on an empty directory and has it
// restore each stream as from a backup: the request names the settings, and the
// archive is the files of the stream. Then the server starts once more, because
// only a start completes an atomic batch that a killed server stored in part.
func StartCopy(o CopyOptions) (_ *Server, err error) {
	from := filepath.Join(accountDir(o.Dir, HubAccount), "streams")
	if _, err := os.Stat(from); errors.Is(err, fs.ErrNotExist) {
		// An older build kept them there, and no server has run since.
		from = filepath.Join(accountDir(o.Dir, server.DEFAULT_GLOBAL_ACCOUNT), "streams")
	}
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
	s, err := StartServer(ServerOptions{Dir: tmp, Log: o.Log})
	if err != nil {
		return nil, err
	}
	hub, err := s.ns.LookupAccount(HubAccount)
	if err == nil {
		c := copier{CopyOptions: o, from: from, account: hub}
		err = c.copy()
	}
	if err := errors.Join(err, s.Close()); err != nil {
		return nil, fmt.Errorf("copy %s to %s: %w", from, tmp, err)
	}
	if s, err = StartServer(ServerOptions{Dir: tmp, Log: o.Log}); err != nil {
		return nil, err
	}
	s.temporary = tmp
	return s, nil
}

// copier restores the streams in a directory into an account.
type copier struct {
	CopyOptions
	from        string
	account     *server.Account
	done, total int64
}

func (c *copier) copy() error {
	entries, err := os.ReadDir(c.from)
	if err != nil {
		return err
	}
	var streams []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "KV_") || !e.IsDir() { // leases of a server that has ended are void
			continue
		}
		streams = append(streams, filepath.Join(c.from, e.Name()))
	}
	for _, dir := range streams {
		if err := walk(dir, func(_ string, info fs.FileInfo) error { c.total += info.Size(); return nil }); err != nil {
			return err
		}
	}
	for _, dir := range streams {
		err := c.restore(dir)
		if errors.Is(err, syscall.ENOSPC) {
			err = fmt.Errorf("%w; the copy takes %d MiB: name a directory with more room by TMPDIR", err, c.total>>20)
		}
		if err != nil {
			return fmt.Errorf("stream %s: %w", filepath.Base(dir), err)
		}
	}
	return nil
}

// restore restores the stream in dir. In the copy its messages never expire.
func (c *copier) restore(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, server.JetStreamMetaFile))
	if err != nil {
		return err
	}
	var stream server.FileStreamInfo
	if err := json.Unmarshal(b, &stream); err != nil {
		return fmt.Errorf("read its settings: %w", err)
	}
	stream.MaxAge = 0
	r, w := io.Pipe()
	ended := make(chan struct{})
	go func() { defer close(ended); w.CloseWithError(c.archive(w, dir)) }()
	_, err = c.account.RestoreStream(&stream.StreamConfig, r) // the error of archive too
	r.Close()
	<-ended
	return err
}

// archive writes the files of a stream as a backup: a tar archive under s2.
func (c *copier) archive(w io.Writer, dir string) error {
	z := s2.NewWriter(w, s2.WriterUncompressed(), s2.WriterConcurrency(1))
	t := tar.NewWriter(z)
	err := walk(dir, func(path string, info fs.FileInfo) error {
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := t.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: info.Size()}); err != nil {
			return err
		}
		n, err := io.Copy(t, f)
		c.done += n
		if c.Progress != nil {
			c.Progress(c.done, c.total)
		}
		return err
	})
	return errors.Join(err, t.Close(), z.Close())
}

// walk calls file for the files of a stream but not for those of its consumers.
func walk(dir string, file func(path string, info fs.FileInfo) error) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == "obs":
			return fs.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return file(path, info)
	})
}
