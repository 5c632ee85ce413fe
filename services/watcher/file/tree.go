package file

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/fsnotify/fsnotify"
)

// tree is the directory on disk with the notifications of its changes. Names are
// relative to the directory; links in them are not resolved.
type tree struct {
	dir    string
	wanted func(name string) bool // a file counts
	notify *fsnotify.Watcher
	errs   []error // of notify, which came while directories were watched
	// dirs holds the names of the watched directories by their path without links.
	// The name is outside if the directory only holds the target of a link.
	dirs map[string]string
	root string // dir without links
}

// outside is the name of directories that are not in the tree. After a change in
// one the watcher reads everything again.
const outside = "\x00"

func newTree(dir string, wanted func(name string) bool, notify *fsnotify.Watcher) *tree {
	return &tree{dir: dir, wanted: wanted, notify: notify, dirs: map[string]string{}}
}

// found is the result of a walk.
type found struct {
	files      []string
	unreadable map[string]error // directories, by name
}

// check fails if the directory does not exist any more.
func (t *tree) check() error {
	info, err := os.Stat(t.dir)
	if err == nil && !info.IsDir() {
		err = syscall.ENOTDIR
	}
	return t.wrap(err)
}

func (t *tree) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("directory %s: %w", t.dir, unwrap(err))
}

// walk finds all files and watches all directories. It watches a directory before
// it reads it, so that it misses no change.
func (t *tree) walk() (found, error) {
	abs, err := filepath.Abs(t.dir)
	if err != nil {
		return found{}, err
	}
	if t.root, err = filepath.EvalSymlinks(abs); err != nil {
		return found{}, t.wrap(err)
	}
	w := walker{tree: t, found: found{unreadable: map[string]error{}}, dirs: map[string]string{}, links: map[string]bool{}}
	if abs != t.root {
		w.links[filepath.Dir(abs)] = true // it holds the link to the directory
	}
	if err := w.walk("", t.root); err != nil {
		return found{}, err
	}
	if err, ok := w.found.unreadable[""]; ok {
		return found{}, t.wrap(err)
	}
	for dir := range w.links {
		if _, in := w.dirs[dir]; in {
			continue
		}
		if err := t.watch(dir); err == nil {
			w.dirs[dir] = outside
		} else if isLimit(err) {
			return found{}, err
		}
	}
	for dir := range t.dirs {
		if _, still := w.dirs[dir]; !still {
			_ = t.hear(func() error { return t.notify.Remove(dir) }) // it fails for a directory that is gone
		}
	}
	t.dirs = w.dirs
	return w.found, nil
}

type walker struct {
	*tree
	found found
	dirs  map[string]string
	links map[string]bool // directories that hold targets of links
}

func (w *walker) walk(name, real string) error {
	if _, again := w.dirs[real]; again {
		return nil
	}
	err := w.watch(real)
	if isLimit(err) {
		return err
	}
	var entries []fs.DirEntry
	if err == nil {
		w.dirs[real] = name
		entries, err = os.ReadDir(real)
	}
	if err != nil {
		if name == "" || !errors.Is(err, fs.ErrNotExist) {
			w.found.unreadable[name] = unwrap(err)
		}
		return nil
	}
	for _, e := range entries {
		if err := w.entry(filepath.Join(name, e.Name()), filepath.Join(real, e.Name()), e); err != nil {
			return err
		}
	}
	return nil
}

func (w *walker) entry(name, real string, e fs.DirEntry) error {
	if strings.HasPrefix(e.Name(), ".") {
		return nil
	}
	mode := e.Type()
	if mode&fs.ModeSymlink != 0 {
		target, err := filepath.EvalSymlinks(real)
		if err == nil {
			var info fs.FileInfo
			if info, err = os.Stat(target); err == nil {
				mode, real = info.Mode(), target
				if !mode.IsDir() {
					w.links[filepath.Dir(target)] = true
				}
			}
		}
		if err != nil && w.wanted(name) {
			w.found.files = append(w.found.files, name) // reading it gives the error
			return nil
		}
	}
	switch {
	case mode.IsDir():
		return w.walk(name, real)
	case mode.IsRegular() && w.wanted(name):
		w.found.files = append(w.found.files, name)
	}
	return nil
}

func (t *tree) watch(dir string) error {
	if err := t.hear(func() error { return t.notify.Add(dir) }); err != nil {
		if errors.Is(err, syscall.ENOSPC) {
			return fmt.Errorf("watch %s: %w: raise the sysctl fs.inotify.max_user_watches", dir, err)
		}
		return err
	}
	return nil
}

// hear makes a call of notify, and receives its errors meanwhile: notify holds the lock that
// the call needs until an error is received. lastError returns them later.
func (t *tree) hear(call func() error) error {
	done := make(chan error, 1)
	go func() { done <- call() }()
	for {
		select {
		case err := <-done:
			return err
		case err := <-t.notify.Errors:
			t.errs = append(t.errs, err)
		}
	}
}

// lastError takes an error of notify that came during hear; nil: there is none.
func (t *tree) lastError() (err error) {
	if last := len(t.errs) - 1; last >= 0 {
		err, t.errs = t.errs[last], t.errs[:last]
	}
	return err
}

// isLimit reports whether the system refuses to watch more directories.
func isLimit(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EMFILE) }

// classify returns the name of the file that a notification of path is about, and
// "" if no file of the tree changed. all reports that directories or links changed,
// so that everything must be read. It looks at the present state of path.
func (t *tree) classify(path string) (name string, all bool) {
	_, isDir := t.dirs[path]
	dir, in := t.dirs[filepath.Dir(path)]
	if isDir || !in || dir == outside {
		return "", true
	}
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return "", true
	}
	if name = filepath.Join(dir, filepath.Base(path)); strings.HasPrefix(filepath.Base(name), ".") || !t.wanted(name) {
		name = ""
	}
	return name, false
}

// read returns the content of a file. check, which may be nil, decides about the file
// that is open.
func (t *tree) read(name string, most int64, check func(fs.FileInfo) error) ([]byte, error) {
	path := filepath.Join(t.root, name)
	info, err := os.Stat(path) // opening a pipe would wait for its writer
	if err != nil {
		return nil, unwrap(err)
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, unwrap(err)
	}
	defer f.Close()
	if info, err = f.Stat(); err == nil && info.Size() > most {
		err = fmt.Errorf("it has %d bytes, more than %d", info.Size(), most)
	}
	if err == nil && check != nil {
		err = check(info)
	}
	if err != nil {
		return nil, unwrap(err)
	}
	data := make([]byte, info.Size())
	n, err := io.ReadFull(f, data)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) { // it has become shorter; its change is reported
		err = nil
	}
	return data[:n], unwrap(err)
}

// exists reports whether a name exists, even as a broken link.
func (t *tree) exists(name string) bool {
	_, err := os.Lstat(filepath.Join(t.root, name))
	return err == nil
}
