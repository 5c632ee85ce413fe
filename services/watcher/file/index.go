package file

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher"
)

// index holds the content of all files. It is pure.
type index struct {
	base  string // of the names of files, for people
	files map[string]*file
	// claims holds the entries of each key in all files, the winner first: by name
	// of the file, then by line.
	claims map[ident.Key][]claim
	last   map[ident.Key]watcher.Object // what changes returned last

	// What happened since the last call of changes and problems.
	touched    map[ident.Key]bool
	reread     map[string]bool
	removed    map[string]*file                // files that are gone, and may come back
	reported   map[string][]problem.Diagnostic // what problems returned last
	wasPartial bool                            // of the listing
	doubted    map[string]bool                 // files that broke, and files that may be half written
}

type file struct {
	sum [sha256.Size]byte // of the data that was read last; zero: the file is unreadable
	cut bool              // it may be half written
	content
	// unknown: the file was broken at the listing, and still is; its earlier
	// objects are not known.
	unknown bool
}

type claim struct {
	file string
	entry
}

func newIndex(base string) *index {
	return &index{
		base:  base,
		files: map[string]*file{}, claims: map[ident.Key][]claim{}, last: map[ident.Key]watcher.Object{},
		touched: map[ident.Key]bool{}, removed: map[string]*file{}, doubted: map[string]bool{}, reread: map[string]bool{}, reported: map[string][]problem.Diagnostic{},
	}
}

// parse parses the data of a file, for a revision, beside others, and returns what stores
// it. A broken file keeps the objects that it held before.
func (x *index) parse(name, revision string, data []byte) (store func()) {
	sum := sha256.Sum256(data)
	if x.has(name, sum) {
		return func() {}
	}
	before := &content{}
	if old := x.before(name); old != nil {
		before = &old.content
	}
	f := &file{sum: sum, cut: cut(data), content: parse(name, revision, data, before)}
	return func() { x.store(name, f) }
}

// has reports whether a file was read with this sum last.
func (x *index) has(name string, sum [sha256.Size]byte) bool {
	now := x.files[name]
	return now != nil && now.sum == sum
}

// store stores a file that was parsed.
func (x *index) store(name string, f *file) {
	if old := x.before(name); old != nil {
		if f.broken {
			has := map[ident.Key]bool{}
			for _, e := range f.entries {
				has[e.key] = true
			}
			f.entries = append(f.entries, slices.DeleteFunc(slices.Clone(old.entries), func(e entry) bool { return has[e.key] })...)
		}
		f.unknown = old.unknown && f.broken
	}
	x.replace(name, f)
}

// cut reports whether a file ends within a line: its writer may not have finished,
// and half a file can be good YAML, such as a route without its second half. Half
// a JSON file never is.
func cut(data []byte) bool {
	return !bytes.HasSuffix(data, []byte("\n")) && !bytes.HasPrefix(data, []byte("{"))
}

// fail stores the error of reading a file or a directory.
func (x *index) fail(name string, err error) {
	f := &file{content: content{broken: true, problems: []problem.Diagnostic{{
		Severity: problem.Error, Code: "unreadable", Origin: x.origin(name), Reason: err.Error(),
		Advice: "make it readable, or remove it", Effect: "what it held before stays; nothing of it is removed",
	}}}}
	if old := x.before(name); old != nil {
		f.entries, f.unknown = old.entries, old.unknown
	}
	x.replace(name, f)
}

// origin returns the name of a file for people and the log.
func (x *index) origin(name string) string { return origin(filepath.Join(x.base, name)) }

// remove notes that a file is gone.
func (x *index) remove(name string) {
	if f := x.files[name]; f != nil {
		x.removed[name] = f
		x.replace(name, nil)
	}
}

// before returns what a file held, even if it was gone for a moment.
func (x *index) before(name string) *file {
	return cmp.Or(x.files[name], x.removed[name])
}

// keep removes the files that a walk did not find, except files in unreadable
// directories.
func (x *index) keep(f found) {
	is := map[string]bool{}
	for _, name := range f.files {
		is[name] = true
	}
	for name := range x.files {
		_, failed := f.unreadable[name]
		hidden := false
		for dir := range f.unreadable {
			hidden = hidden || strings.HasPrefix(name, dir+string(filepath.Separator))
		}
		if !is[name] && !failed && !hidden {
			x.remove(name)
		}
	}
}

func (x *index) replace(name string, f *file) {
	gone, come := x.moved(name, f)
	for _, e := range gone {
		x.touch(e.key)
		x.claims[e.key] = slices.DeleteFunc(x.claims[e.key], func(c claim) bool { return c.file == name })
	}
	x.reread[name] = true
	old := x.before(name)
	broke := f != nil && f.broken && (old == nil || !old.broken || x.doubted[name])
	if broke || f != nil && f.cut {
		x.doubted[name] = true
	} else {
		delete(x.doubted, name)
	}
	if f == nil {
		delete(x.files, name)
		return
	}
	x.files[name] = f
	for _, e := range come {
		claims := append(x.claims[e.key], claim{name, e})
		slices.SortStableFunc(claims, func(a, b claim) int {
			return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.line, b.line))
		})
		x.claims[e.key] = claims
		x.touch(e.key)
	}
}

// moved gives the entries that a file has before and after its first and last change their
// new lines, so that a change of a large file costs what it changes. It returns the others:
// those that the file had, and those that it has.
func (x *index) moved(name string, f *file) (gone, come []entry) {
	if old := x.files[name]; old != nil {
		gone = old.entries
	}
	if f != nil {
		come = f.entries
	}
	moves := func(from, to entry) bool {
		claims := x.claims[to.key]
		if from.key != to.key || len(claims) != 1 || !same(from.object, to.object) {
			return false
		}
		claims[0].entry = to
		return true
	}
	for len(gone) > 0 && len(come) > 0 && moves(gone[0], come[0]) {
		gone, come = gone[1:], come[1:]
	}
	for len(gone) > 0 && len(come) > 0 && moves(gone[len(gone)-1], come[len(come)-1]) {
		gone, come = gone[:len(gone)-1], come[:len(come)-1]
	}
	return gone, come
}

// touch marks a key for changes, and its files for problems.
func (x *index) touch(k ident.Key) {
	x.touched[k] = true
	for _, c := range x.claims[k] {
		x.reread[c.file] = true
	}
}

// listed marks the present content as listed.
func (x *index) listed() {
	for _, f := range x.files {
		f.unknown = f.broken
	}
	x.wasPartial = x.partial()
}

// partial reports whether objects of the listing are not known.
func (x *index) partial() bool {
	for _, f := range x.files {
		if f.unknown {
			return true
		}
	}
	return false
}

// unsettled reports whether, since the last call of changes, objects are gone, a
// file broke, or a file may be half written.
func (x *index) unsettled() bool {
	for k := range x.touched {
		if _, was := x.last[k]; was && len(x.claims[k]) == 0 {
			return true
		}
	}
	return len(x.doubted) > 0
}

// readable reports whether a partial listing could be complete now.
func (x *index) readable() bool { return x.wasPartial && !x.partial() }

// Objects returns the objects of a file as a Watcher reads them, sorted by key,
// and the problems of its documents. If several objects have one key it returns
// the first. It is pure.
func Objects(name string, data []byte) ([]watcher.Object, []problem.Diagnostic) {
	x := newIndex("")
	x.parse(name, "", data)()
	return x.changes(time.Time{}), x.files[name].problems
}

// changes returns the objects that differ from what it returned before, by key.
func (x *index) changes(observed time.Time) []watcher.Object {
	var set []watcher.Object
	for k := range x.touched {
		old, was := x.last[k]
		claims := x.claims[k]
		if len(claims) == 0 {
			delete(x.claims, k)
			if was {
				delete(x.last, k)
				set = append(set, watcher.Object{
					Kind: k.Kind, Namespace: k.Namespace, Name: k.Name, Delete: true,
					Origin: old.Origin, Actor: old.Actor, Observed: observed,
				})
			}
			continue
		}
		o := claims[0].object
		if was && same(old, o) {
			continue
		}
		x.last[k] = o
		o.Observed = observed
		set = append(set, o)
	}
	clear(x.touched)
	clear(x.removed)
	clear(x.doubted)
	slices.SortFunc(set, watcher.Object.Compare)
	return set
}

func same(a, b watcher.Object) bool {
	return a.Value.Type == b.Value.Type && bytes.Equal(a.Value.Bytes, b.Value.Bytes) && a.Value.Created.Equal(b.Value.Created)
}

// problems returns the problems of the files whose problems changed.
func (x *index) problems() map[string][]problem.Diagnostic {
	all := map[string][]problem.Diagnostic{}
	for name := range x.reread {
		f := x.files[name]
		if f == nil {
			f = &file{}
		}
		ds := slices.Clone(f.problems)
		for _, e := range f.entries {
			if d, lost := x.conflict(name, e); lost {
				ds = append(ds, d)
			}
		}
		if !slices.Equal(ds, x.reported[name]) {
			all[x.origin(name)] = ds
			x.reported[name] = ds
		}
		if len(ds) == 0 {
			delete(x.reported, name)
		}
	}
	clear(x.reread)
	return all
}

// conflict reports whether another place holds the object of e's key.
func (x *index) conflict(name string, e entry) (problem.Diagnostic, bool) {
	first := x.claims[e.key][0]
	if first.file == name && first.line == e.line {
		return problem.Diagnostic{}, false
	}
	return problem.Diagnostic{
		Severity: problem.Error, Code: "duplicate", Key: e.key,
		Origin: fmt.Sprintf("%s:%d", x.origin(name), e.line), Field: "metadata.name",
		Reason: fmt.Sprintf("%s is in %s:%d already", e.key, x.origin(first.file), first.line),
		Advice: "rename or remove one of them", Effect: "the one in " + x.origin(first.file) + " takes effect",
	}, true
}
