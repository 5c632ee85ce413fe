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

// maxFile is the largest file that is read.
const maxFile = 64 << 20

// tree is the directory on disk, and the notifications of what changes there.
// Names in it are relative to the directory, with links not resolved.
type tree struct {
	dir    string
	notify *fsnotify.Watcher
	// dirs are the directories that are watched, by their path without links,
	// with their name; outside for those that only a link leads to a file in.
	dirs map[string]string
	root string // dir without links
}

// outside is the name of directories that are not of the tree. What changes in
// one makes all be read again.
const outside = "\x00"

func newTree(dir string, notify *fsnotify.Watcher) *tree {
	return &tree{dir: dir, notify: notify, dirs: map[string]string{}}
}

// found is what a walk found.
type found struct {
	files      []string
	unreadable map[string]error // directories, by name
}

// check fails if the directory is not there any more.
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

// walk finds all files, and watches all directories: before it reads them, so
// that nothing is missed.
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
		w.links[filepath.Dir(abs)] = true // where the link to the directory is
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
			_ = t.notify.Remove(dir) // it fails for one that is gone
		}
	}
	t.dirs = w.dirs
	return w.found, nil
}

type walker struct {
	*tree
	found found
	dirs  map[string]string
	links map[string]bool // directories that links lead to a file in
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
		if err != nil && wanted(name) {
			w.found.files = append(w.found.files, name) // reading it will say
			return nil
		}
	}
	switch {
	case mode.IsDir():
		return w.walk(name, real)
	case mode.IsRegular() && wanted(name):
		w.found.files = append(w.found.files, name)
	}
	return nil
}

func wanted(name string) bool {
	if strings.HasPrefix(filepath.Base(name), ".") {
		return false
	}
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

func (t *tree) watch(dir string) error {
	if err := t.notify.Add(dir); err != nil {
		if errors.Is(err, syscall.ENOSPC) {
			return fmt.Errorf("watch %s: %w: raise the sysctl fs.inotify.max_user_watches", dir, err)
		}
		return err
	}
	return nil
}

// isLimit says that no more directories can be watched.
func isLimit(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EMFILE) }

type changed int

// What the change of a path means.
const (
	nothingChanged changed = iota
	fileChanged            // a file of the tree was written, made or removed
	treeChanged            // directories or links changed: read all
)

// classify says what a notification is about, by how things are now.
func (t *tree) classify(path string) (changed, string) {
	if _, is := t.dirs[path]; is {
		return treeChanged, ""
	}
	dir, in := t.dirs[filepath.Dir(path)]
	if !in || dir == outside {
		return treeChanged, ""
	}
	name := filepath.Join(dir, filepath.Base(path))
	info, err := os.Lstat(path)
	switch {
	case err == nil && !info.Mode().IsRegular():
		return treeChanged, ""
	case wanted(name):
		return fileChanged, name
	}
	return nothingChanged, ""
}

func (t *tree) read(name string) ([]byte, error) {
	path := filepath.Join(t.root, name)
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, unwrap(err)
	case !info.Mode().IsRegular():
		return nil, errors.New("it is no regular file")
	case info.Size() > maxFile:
		return nil, fmt.Errorf("it has %d bytes, more than %d", info.Size(), maxFile)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, unwrap(err)
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	return data, unwrap(err)
}

// exists says whether there is something under a name, be it a broken link.
func (t *tree) exists(name string) bool {
	_, err := os.Lstat(filepath.Join(t.root, name))
	return err == nil
}
