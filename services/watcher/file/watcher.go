// Package file watches a directory of YAML and JSON files, with its
// subdirectories, and a directory of TLS credentials. ../README.md describes the
// formats, and what the watcher does with broken and unreadable files.
//
// The watcher skips names that begin with a dot, and files that do not end in
// .yaml, .yml or .json, or are no part of a credential. It follows symbolic links,
// to each directory once.
package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"meshlog.dev/services/mesh/credential"
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

// Watcher watches one directory of documents, and maybe one of credentials.
type Watcher struct {
	dirs   []layout
	settle time.Duration
}

// New returns a watcher of a directory, which need not exist yet.
func New(dir string) *Watcher {
	return &Watcher{dirs: []layout{documents{dir: dir}}, settle: settle}
}

// OfRevision makes w pass over the documents that a control plane of a revision does not
// see (kind.InRevision), and returns it.
func (w *Watcher) OfRevision(revision string) *Watcher {
	w.dirs[0] = documents{w.dirs[0].path(), revision}
	return w
}

// WithCredentials makes w watch the credentials in a directory too, and returns it;
// o says what references to them reveal. The directory need not exist yet.
func (w *Watcher) WithCredentials(dir string, o credential.Options) *Watcher {
	w.dirs = append(w.dirs, credentials{dir, o})
	return w
}

// Run implements watcher.Watcher. The source is down while one of the directories
// does not exist or cannot be read.
func (w *Watcher) Run(ctx context.Context, sink watcher.Sink) error {
	r := run{sink: sink, settle: w.settle}
	for _, l := range w.dirs {
		notify, err := fsnotify.NewWatcher()
		if err != nil {
			return fmt.Errorf("watch %s: %w", l.path(), err)
		}
		defer notify.Close()
		r.dirs = append(r.dirs, &directory{layout: l, tree: newTree(l.path(), l.wanted, notify), index: newIndex(l.base())})
	}
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
	dirs   []*directory
	sink   watcher.Sink
	settle time.Duration
}

// directory is a directory that is watched.
type directory struct {
	layout layout
	tree   *tree
	index  *index
}

func (r *run) list(ctx context.Context) error {
	for _, d := range r.dirs {
		if err := d.readAll(); err != nil {
			return err
		}
	}
	if r.any((*index).unsettled) {
		var c changes
		c.start()
		if err := r.await(ctx, &c); err != nil {
			return err
		}
	}
	for _, d := range r.dirs {
		d.index.listed()
	}
	l := watcher.Listing{Objects: r.changes(time.Now()), Partial: r.any((*index).partial)}
	if err := r.sink.List(ctx, l); err != nil {
		return err
	}
	r.report()
	return nil
}

func (r *run) any(is func(*index) bool) bool {
	return slices.ContainsFunc(r.dirs, func(d *directory) bool { return is(d.index) })
}

// changes returns what has changed in all directories, by key: no kind is in two.
func (r *run) changes(observed time.Time) []watcher.Object {
	var set []watcher.Object
	for _, d := range r.dirs {
		set = append(set, d.index.changes(observed)...)
	}
	slices.SortFunc(set, watcher.Object.Compare)
	return set
}

// step waits for changes and publishes them. done: a partial listing could be
// complete now, so Run ends for a new one.
func (r *run) step(ctx context.Context) (done bool, err error) {
	var c changes
	if err := r.await(ctx, &c); err != nil {
		return false, err
	}
	// A program that removes the directory removes its files first.
	for _, d := range r.dirs {
		if err := d.tree.check(); err != nil {
			return false, err
		}
	}
	if set := r.changes(c.first); len(set) > 0 {
		if err := r.sink.Change(ctx, set); err != nil {
			return false, err
		}
	}
	r.report()
	return r.any((*index).readable), nil
}

// await waits until there are changes, and until they have settled.
func (r *run) await(ctx context.Context, c *changes) error {
	for more := true; more; {
		var err error
		if more, err = r.gather(ctx, c); err != nil {
			return err
		}
		if err := c.read(); err != nil {
			return err
		}
		more = more && r.any((*index).unsettled) && time.Since(c.first) < 10*r.settle
	}
	return nil
}

// changes are the paths that are known to have changed.
type changes struct {
	first time.Time // when the first was seen; zero: there is none
	paths map[*directory]map[string]bool
	all   map[*directory]bool // some were missed
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
	for _, d := range r.dirs {
		if err := d.tree.lastError(); err != nil {
			return c.miss(d, err)
		}
	}
	documents, credentials := r.notices(0), r.notices(1)
	select {
	case e, ok := <-documents.Events:
		return c.add(r.dirs[0], e, ok)
	case err := <-documents.Errors:
		return c.miss(r.dirs[0], err)
	case e, ok := <-credentials.Events:
		return c.add(r.dirs[1], e, ok)
	case err := <-credentials.Errors:
		return c.miss(r.dirs[1], err)
	case <-ctx.Done():
		return false, ctx.Err()
	case <-patience:
	}
	// A change may have come before the timer.
	select {
	case e, ok := <-documents.Events:
		return c.add(r.dirs[0], e, ok)
	case err := <-documents.Errors:
		return c.miss(r.dirs[0], err)
	case e, ok := <-credentials.Events:
		return c.add(r.dirs[1], e, ok)
	case err := <-credentials.Errors:
		return c.miss(r.dirs[1], err)
	default:
		return false, nil
	}
}

// notices returns the notifications of a directory; they never come if it is not
// watched.
func (r *run) notices(dir int) *fsnotify.Watcher {
	if dir < len(r.dirs) {
		return r.dirs[dir].tree.notify
	}
	return &fsnotify.Watcher{}
}

func (c *changes) add(d *directory, e fsnotify.Event, ok bool) (bool, error) {
	if !ok {
		return false, errors.New("the file system's notifications ended")
	}
	c.start()
	if e.Name != "" {
		if c.paths[d] == nil {
			c.paths[d] = map[string]bool{}
		}
		c.paths[d][e.Name] = true
	}
	return true, nil
}

// miss notes that changes may have been missed. EINVAL is fsnotify's error about a
// watched directory that was moved away and has gone before it was unwatched.
func (c *changes) miss(d *directory, err error) (bool, error) {
	if !errors.Is(err, fsnotify.ErrEventOverflow) && !errors.Is(err, syscall.EINVAL) {
		return false, fmt.Errorf("the file system's notifications: %w", err)
	}
	c.start()
	c.all[d] = true
	return true, nil
}

func (c *changes) start() {
	if c.first.IsZero() {
		c.first, c.paths, c.all = time.Now(), map[*directory]map[string]bool{}, map[*directory]bool{}
	}
}

// read reads the files that changed.
func (c *changes) read() error {
	for d := range c.all {
		if err := d.readAll(); err != nil {
			return err
		}
	}
	for d, paths := range c.paths {
		if c.all[d] {
			continue
		}
		if err := d.readChanged(paths); err != nil {
			return err
		}
	}
	return nil
}

func (d *directory) readChanged(paths map[string]bool) error {
	units := map[string]bool{}
	for path := range paths {
		name, all := d.tree.classify(path)
		if all {
			return d.readAll()
		}
		if name != "" {
			units[d.layout.unit(name)] = true
		}
	}
	d.read(slices.Sorted(maps.Keys(units)))
	return nil
}

// read reads units.
func (d *directory) read(units []string) {
	for some := range slices.Chunk(units, 256) {
		store := make([]func(), len(some))
		sideBySide(len(some), func(i int) { store[i] = d.layout.read(d.tree, d.index, some[i]) })
		for _, s := range store {
			s()
		}
	}
}

// readAll walks the tree and reads all files.
func (d *directory) readAll() error {
	found, err := d.tree.walk()
	if err != nil {
		return err
	}
	for name, err := range found.unreadable {
		d.index.fail(name, err)
	}
	for i, name := range found.files {
		found.files[i] = d.layout.unit(name)
	}
	found.files = slices.Compact(slices.Sorted(slices.Values(found.files)))
	d.read(found.files)
	d.index.keep(found)
	return nil
}

// report publishes the problems of the files that were read again.
func (r *run) report() {
	for _, d := range r.dirs {
		for name, ds := range d.index.problems() {
			r.sink.Problems(name, ds)
		}
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
