// Package files writes a certificate, its key and the roots of the mesh into a directory,
// for applications and gRPC clients that read files (AGT-7).
//
// The files are links through the link ..data, which is replaced at once, as Kubernetes
// does it in volumes of Secrets: a reader never gets a certificate with the key of another
// one, if it follows ..data once.
package files

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"meshlog.dev/services/internal/seal"
)

// Names of the files.
const (
	Chain = "tls.crt"
	Key   = "tls.key"
	Roots = "ca.crt"

	data   = "..data"
	prefix = "..meshlog-"
)

// Content holds the certificate, key and roots that Write writes.
type Content struct{ Chain, Key, Roots []byte }

// Dir writes into a directory.
type Dir struct {
	Path string
	// Group may read the files; negative: only their owner.
	Group int
}

// Write replaces all files at once.
func (d Dir) Write(c Content) error {
	if err := os.MkdirAll(d.Path, 0o755); err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(string(c.Chain) + "\x00" + string(c.Roots)))
	name := prefix + hex.EncodeToString(sum[:8])
	if current, err := os.Readlink(filepath.Join(d.Path, data)); err == nil && current == name {
		return nil
	}
	if err := d.fill(filepath.Join(d.Path, name), c); err != nil {
		return err
	}
	if err := d.link(name, data); err != nil {
		return err
	}
	for _, file := range []string{Chain, Key, Roots} {
		target := filepath.Join(data, file)
		if now, err := os.Readlink(filepath.Join(d.Path, file)); err == nil && now == target {
			continue
		}
		if _, err := os.Lstat(filepath.Join(d.Path, file)); err == nil {
			return fmt.Errorf("%s is there and was not written by an agent: give a directory without it", filepath.Join(d.Path, file))
		}
		if err := d.link(target, file); err != nil {
			return err
		}
	}
	return errors.Join(seal.SyncDir(d.Path), d.clean(name))
}

// fill writes the files into a directory of their own.
func (d Dir) fill(dir string, c Content) error {
	if err := os.RemoveAll(dir); err != nil { // a crash may have left a part
		return err
	}
	mode, dirMode := fs.FileMode(0o600), fs.FileMode(0o700)
	if d.Group >= 0 {
		mode, dirMode = 0o640, 0o750
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	for name, content := range map[string][]byte{Chain: c.Chain, Key: c.Key, Roots: c.Roots} {
		path := filepath.Join(dir, name)
		if err := seal.CreateFile(path, content); err != nil {
			return err
		}
		if err := d.open(path, mode); err != nil {
			return err
		}
	}
	return d.open(dir, dirMode)
}

// open gives the group a path.
func (d Dir) open(path string, mode fs.FileMode) error {
	if d.Group >= 0 {
		if err := os.Chown(path, -1, d.Group); err != nil {
			return err
		}
	}
	return os.Chmod(path, mode)
}

// link makes the link name point to target, at once.
func (d Dir) link(target, name string) error {
	tmp := filepath.Join(d.Path, prefix+"link")
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, tmp); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(d.Path, name))
}

// clean removes what earlier certificates left.
func (d Dir) clean(current string) error {
	entries, err := os.ReadDir(d.Path)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) && e.Name() != current {
			errs = append(errs, os.RemoveAll(filepath.Join(d.Path, e.Name())))
		}
	}
	return errors.Join(errs...)
}
