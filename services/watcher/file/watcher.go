// Package file watches a directory of YAML and JSON files, with its
// subdirectories. ../README.md describes the formats, and what the watcher does
// with broken and unreadable files.
//
// The watcher skips names that begin with a dot, and files that do not end in
// .yaml, .yml or .json. It follows symbolic links, to each directory once.
package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/fsnotify/fsnotify"

	"meshlog.dev/services/watcher"
)

// How long the watcher gathers changes before it publishes them.
const (
	// quiet is the time without a change that ends the gathering. The changes of
	// one written file, and the files of one save or checkout, come faster.
	quiet = 2 * time.Millisecond
	// longest bounds the wait when changes never pause.
	longest = 50 * time.Millisecond
	// settle is the quiet after which the watcher reports that objects are gone,
	// or that a file is broken or ends within a line: a program may be about to
	// write the file or to replace it. A removal is not urgent. Ten times settle
	// bounds the wait.
	settle = 100 * time.Millisecond
)

// Watcher watches one directory.
type Watcher struct {
	dir    string
	settle time.Duration
}

// New returns a watcher of a directory, which need not exist yet.
func New(dir string) *Watcher { return &Watcher{dir: dir, settle: settle} }

// Run implements watcher.Watcher. The source is down while the directory does not
// exist or cannot be read.
func (w *Watcher) Run(ctx context.Context, sink watcher.Sink) error {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", w.dir, err)
	}
	defer notify.Close()
	r := run{tree: newTree(w.dir, notify), index: newIndex(), sink: sink, settle: w.settle}
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

// run is the state of one Run.
type run struct {
	tree   *tree
	index  *index
	sink   watcher.Sink
	settle time.Duration
}

func (r *run) list(ctx context.Context) error {
	if err := r.readAll(); err != nil {
		return err
	}
	if r.index.unsettled() {
		var c changes
		c.start()
		if err := r.await(ctx, &c); err != nil {
			return err
		}
	}
	r.index.listed()
	l := watcher.Listing{Objects: r.index.changes(time.Now()), Partial: r.index.partial()}
	if err := r.sink.List(ctx, l); err != nil {
		return err
	}
	r.report()
	return nil
}

// step waits for changes and publishes them. done: a partial listing could be
// complete now, so Run ends for a new one.
func (r *run) step(ctx context.Context) (done bool, err error) {
	var c changes
	if err := r.await(ctx, &c); err != nil {
		return false, err
	}
	// A program that removes the directory removes its files first.
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

// await waits until there are changes, and until they have settled.
func (r *run) await(ctx context.Context, c *changes) error {
	for more := true; more; {
		var err error
		if more, err = r.gather(ctx, c); err != nil {
			return err
		}
		if err := r.read(*c); err != nil {
			return err
		}
		more = more && r.index.unsettled() && time.Since(c.first) < 10*r.settle
	}
	return nil
}

// changes are the paths that are known to have changed.
type changes struct {
	first time.Time // when the first was seen; zero: there is none
	paths map[string]bool
	all   bool // some were missed
}

// gather waits until there is a change, and then until there is none for a while.
// If c has changes already it waits no longer than settle. more reports whether a
// change came.
func (r *run) gather(ctx context.Context, c *changes) (more bool, err error) {
	var patience <-chan time.Time
	if !c.first.IsZero() {
		patience = time.After(r.settle)
	}
	var end time.Time
	for {
		came, err := r.next(ctx, c, patience)
		if err != nil || !came {
			return more, err
		}
		now := time.Now()
		if !more {
			more, end = true, now.Add(longest)
		}
		if now.After(end) {
			return true, nil
		}
		patience = time.After(quiet)
	}
}

// next waits for a change until patience ends.
func (r *run) next(ctx context.Context, c *changes, patience <-chan time.Time) (came bool, err error) {
	select {
	case e, ok := <-r.tree.notify.Events:
		return c.add(e, ok)
	case err := <-r.tree.notify.Errors:
		return c.miss(err)
	case <-ctx.Done():
		return false, ctx.Err()
	case <-patience:
	}
	// A change may have come before the timer.
	select {
	case e, ok := <-r.tree.notify.Events:
		return c.add(e, ok)
	case err := <-r.tree.notify.Errors:
		return c.miss(err)
	default:
		return false, nil
	}
}

func (c *changes) add(e fsnotify.Event, ok bool) (bool, error) {
	if !ok {
		return false, errors.New("the file system's notifications ended")
	}
	c.start()
	if e.Name != "" {
		c.paths[e.Name] = true
	}
	return true, nil
}

func (c *changes) miss(err error) (bool, error) {
	if !errors.Is(err, fsnotify.ErrEventOverflow) {
		return false, fmt.Errorf("the file system's notifications: %w", err)
	}
	c.start()
	c.all = true
	return true, nil
}

func (c *changes) start() {
	if c.first.IsZero() {
		c.first, c.paths = time.Now(), map[string]bool{}
	}
}

// read reads the files that changed.
func (r *run) read(c changes) error {
	files := map[string]bool{}
	all := c.all
	for path := range c.paths {
		name, tree := r.tree.classify(path)
		all = all || tree
		if name != "" {
			files[name] = true
		}
	}
	if all {
		return r.readAll()
	}
	for name := range files {
		r.readFile(name)
	}
	return nil
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

// report publishes the problems of the files that were read again.
func (r *run) report() {
	for name, ds := range r.index.problems() {
		r.sink.Problems(name, ds)
	}
}

// unwrap removes from an error of package os the operation and the path, which the
// diagnostic already contains.
func unwrap(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err
	}
	return err
}
