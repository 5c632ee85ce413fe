package seal

import (
	"os"
	"path/filepath"
	"sync"
)

// Dir is a directory with many sealed files. Files that are written at the same time share
// the sync of the directory, which takes as long for many names as for one.
type Dir struct {
	Path string

	mu   sync.Mutex
	next *dirSync   // the sync that has not begun; nil: none is due
	turn sync.Mutex // held while one runs
}

// dirSync is a sync that several files wait for.
type dirSync struct {
	once sync.Once
	err  error
}

// Write writes a file of the directory as Key.WriteFile does.
func (d *Dir) Write(k *Key, name string, content []byte) error {
	return k.write(filepath.Join(d.Path, name), content, func(path string, sealed []byte) error {
		return place(path, sealed, os.Rename, func(string) error { return d.sync() })
	})
}

// sync returns when a sync has ended that began after the call.
func (d *Dir) sync() error {
	d.mu.Lock()
	if d.next == nil {
		d.next = &dirSync{}
	}
	s := d.next
	d.mu.Unlock()
	s.once.Do(func() {
		d.turn.Lock()
		defer d.turn.Unlock()
		d.mu.Lock()
		d.next = nil // names from here on may come too late for it
		d.mu.Unlock()
		s.err = SyncDir(d.Path)
	})
	return s.err
}
