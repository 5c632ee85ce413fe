// Package file watches a directory of YAML and JSON files, subdirectories
// included. What it does with files that cannot be read or are broken is
// decided in ../README.md; formats are described there too.
//
// Names that begin with a dot are skipped, as are files that do not end in
// .yaml, .yml or .json. A symbolic link is followed, to a directory once.
package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/fsnotify/fsnotify"

	"meshlog.dev/services/watcher"
)

// The time that changes are gathered before they are read.
const (
	// quiet has to pass without another change: a file that is written comes
	// as several changes, and one save of an editor or a checkout touches
	// several files; both leave less than that in between.
	quiet = 2 * time.Millisecond
	// longest bounds the wait when changes never pause.
	longest = 50 * time.Millisecond
	// settle is the quiet that a file needs of which a save left less objects
	// than before: it may be half-written, and nobody waits for a removal.
	settle, settleLongest = 100 * time.Millisecond, time.Second
)

// Watcher watches one directory.
type Watcher struct{ dir string }

// New returns a watcher of a directory, which need not be there yet.
func New(dir string) *Watcher { return &Watcher{dir: dir} }

// Run implements watcher.Watcher. The source is down while the directory is
// not there or cannot be read.
func (w *Watcher) Run(ctx context.Context, sink watcher.Sink) error {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", w.dir, err)
	}
	defer notify.Close()
	r := run{tree: newTree(w.dir, notify), index: newIndex(), sink: sink}
	if err := r.list(ctx); err != nil {
		return err
	}
	for {
		done, err := r.step(ctx)
		if err != nil || done {
			return err
		}
	}
}

// run is one Run.
type run struct {
	tree  *tree
	index *index
	sink  watcher.Sink
}

func (r *run) list(ctx context.Context) error {
	if err := r.readAll(); err != nil {
		return err
	}
	r.index.listed()
	l := watcher.Listing{Objects: r.index.changes(time.Now()), Partial: r.index.partial()}
	if err := r.sink.List(ctx, l); err != nil {
		return err
	}
	r.report()
	return nil
}

// step waits for changes and publishes what they come to. Done: what could not
// be listed can be.
func (r *run) step(ctx context.Context) (done bool, err error) {
	var c changes
	if err := r.gather(ctx, &c, quiet, longest); err != nil {
		return false, err
	}
	shrunk, err := r.read(c)
	if err != nil {
		return false, err
	}
	if shrunk {
		if err := r.gather(ctx, &c, settle, settleLongest); err != nil {
			return false, err
		}
		if _, err := r.read(c); err != nil {
			return false, err
		}
	}
	// Whoever removes the directory removes its files first.
	if err := r.tree.check(); err != nil {
		return false, err
	}
	if set := r.index.changes(c.first); len(set) > 0 {
		if err := r.sink.Change(ctx, set); err != nil {
			return false, err
		}
	}
	r.report()
	return r.index.readable(), nil
}

// changes are what is known to have changed.
type changes struct {
	first time.Time // when the first was seen; zero: none was
	paths map[string]bool
	all   bool // some were missed
}

// gather waits for a first change, unless c has one, and then until there is
// none for the time of pause.
func (r *run) gather(ctx context.Context, c *changes, pause, most time.Duration) error {
	var paused, end <-chan time.Time
	if !c.first.IsZero() {
		paused, end = time.After(pause), time.After(most)
	}
	for {
		select {
		case e, ok := <-r.tree.notify.Events:
			if !ok {
				return errors.New("the file system's notifications ended")
			}
			if e.Name == "" {
				continue
			}
			if c.paths == nil {
				c.paths = map[string]bool{}
			}
			c.paths[e.Name] = true
		case err := <-r.tree.notify.Errors:
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				return fmt.Errorf("watch %s: %w", r.tree.dir, err)
			}
			c.all = true
		case <-paused:
			return nil
		case <-end:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
		if c.first.IsZero() {
			c.first, end = time.Now(), time.After(most)
		}
		paused = time.After(pause)
	}
}

// read takes in what changed. Shrunk: a file that is still there, and is not
// broken, holds less objects than before.
func (r *run) read(c changes) (shrunk bool, err error) {
	files := map[string]bool{}
	for path := range c.paths {
		what, name := r.tree.classify(path)
		switch what {
		case treeChanged:
			c.all = true
		case fileChanged:
			files[name] = true
		}
	}
	before := r.index.shrunk
	if c.all {
		err = r.readAll()
	} else {
		for name := range files {
			r.readFile(name)
		}
	}
	return r.index.shrunk > before, err
}

// readAll walks the tree and reads all files.
func (r *run) readAll() error {
	found, err := r.tree.walk()
	if err != nil {
		return err
	}
	for name, err := range found.unreadable {
		r.index.fail(name, err)
	}
	for _, name := range found.files {
		r.readFile(name)
	}
	r.index.keep(found)
	return nil
}

func (r *run) readFile(name string) {
	data, err := r.tree.read(name)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !r.tree.exists(name):
		r.index.remove(name)
	case err != nil:
		r.index.fail(name, err)
	default:
		r.index.set(name, data)
	}
}

// report says what is wrong in the files that were read again.
func (r *run) report() {
	for name, ds := range r.index.problems() {
		r.sink.Problems(name, ds)
	}
}

// unwrap leaves out of an error of the os package what its reader knows.
func unwrap(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	var link *os.LinkError
	if errors.As(err, &link) {
		return link.Err
	}
	return err
}
