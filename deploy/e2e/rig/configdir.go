package rig

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// ConfigDir is a watched directory; Save writes to it as a user's editor does.
type ConfigDir struct{ Path string }

// NewConfigDir creates dir/config.
func NewConfigDir(dir string) (*ConfigDir, error) {
	c := &ConfigDir{Path: filepath.Join(dir, "config")}
	return c, os.MkdirAll(c.Path, 0o700)
}

// Save replaces a file atomically, and returns the time of the replacement.
func (c *ConfigDir) Save(name, text string) (time.Time, error) {
	// The new file is written beside the watched directory: the watcher sees only
	// the rename.
	next := filepath.Join(filepath.Dir(c.Path), ".next-"+name)
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		return time.Time{}, err
	}
	at := time.Now()
	if err := os.Rename(next, filepath.Join(c.Path, name)); err != nil {
		return time.Time{}, fmt.Errorf("save %s: %w", name, err)
	}
	return at, nil
}

// Read returns the content of a file.
func (c *ConfigDir) Read(name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(c.Path, name))
	return string(b), err
}

// Remove removes a file.
func (c *ConfigDir) Remove(name string) error { return os.Remove(filepath.Join(c.Path, name)) }
