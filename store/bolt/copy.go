package bolt

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"meshlog.dev/store"
)

// copyTries is how often OpenCopy copies a file that changes meanwhile. A copy is
// whole unless the owner wrote twice during the copy.
const copyTries = 10

// Copy reads a file as it was at one moment.
type Copy struct {
	store.Reader
	s   *Store
	dir string
}

// OpenCopy opens a copy of the file at path for reading, even while another
// process uses the file. Close removes the copy.
func OpenCopy(path string) (*Copy, error) {
	dir, err := os.MkdirTemp("", "meshlog-copy-")
	if err != nil {
		return nil, fmt.Errorf("copy %s: %w", path, err)
	}
	var bad damage
	for range copyTries {
		to := filepath.Join(dir, filepath.Base(path))
		if err = copyFile(to, path); err != nil {
			break
		}
		var s *Store
		if s, err = open(to, store.Retention{}); err == nil {
			return &Copy{Reader: s, s: s, dir: dir}, nil
		}
		if !errors.As(err, &bad) {
			break
		}
	}
	if errors.As(err, &bad) {
		err = fmt.Errorf("it is damaged, or changes faster than it can be copied; stop its owner and try again: %w", bad.reason)
	}
	return nil, errors.Join(fmt.Errorf("copy %s: %w", path, err), os.RemoveAll(dir))
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// Close removes the copy.
func (c *Copy) Close() error {
	return errors.Join(c.s.Close(), os.RemoveAll(c.dir))
}
