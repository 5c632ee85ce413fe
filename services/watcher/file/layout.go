package file

import (
	"errors"
	"io/fs"
	"path/filepath"
)

// layout says which files of a directory count, and what they hold. A unit is what
// the index knows: a file, or several that are one object.
type layout interface {
	path() string // of the directory
	base() string // of the names of units, for people
	wanted(name string) bool
	unit(name string) string
	// read reads a unit, beside others, and returns what puts it into the index.
	read(t *tree, x *index, unit string) (store func())
}

// documents is the layout of a directory of YAML and JSON.
type documents struct{ dir, revision string }

func (l documents) path() string { return l.dir }

// base is empty: in diagnostics, users find files by their names in the directory.
func (documents) base() string { return "" }

func (documents) wanted(name string) bool {
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

func (documents) unit(name string) string { return name }

// maxDocuments is the largest file of documents that is read.
const maxDocuments = 64 << 20

func (l documents) read(t *tree, x *index, name string) (store func()) {
	data, err := t.read(name, maxDocuments, nil)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !t.exists(name):
		return func() { x.remove(name) }
	case err != nil:
		return func() { x.fail(name, err) }
	}
	return x.parse(name, l.revision, data)
}
