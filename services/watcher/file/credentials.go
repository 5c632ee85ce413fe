package file

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path/filepath"
	"slices"
	"strings"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/credential"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
)

// credentials is the layout of a directory of TLS credentials: each directory
// NAMESPACE/NAME in it is one, as a mounted Secret has it. Nothing but references
// leaves it: no object, problem or error repeats a file.
type credentials struct {
	dir     string
	options credential.Options
}

// keyFile is the part of a credential that is not public; parts are all.
const keyFile = "tls.key"

var parts = []string{"tls.crt", keyFile, "ca.crt", "ca.crl", "tls.ocsp-staple"}

func (l credentials) path() string { return l.dir }

// base is the directory: names of credentials look like those of objects.
func (l credentials) base() string { return l.dir }

func (credentials) wanted(name string) bool { return slices.Contains(parts, filepath.Base(name)) }

func (credentials) unit(name string) string { return filepath.Dir(name) }

// maxPart is the largest file of a credential that is read: that of a Secret.
const maxPart = 1 << 20

func (l credentials) read(t *tree, x *index, unit string) (store func()) {
	s := credential.Source{Data: map[string][]byte{}}
	defer func() { clear(s.Data[keyFile]) }()
	var unread *problem.Diagnostic
	sum := sha256.New()
	for part, found := range l.parts(t, unit) {
		s.Data[part] = found.content
		if found.err != nil && unread == nil {
			unread = l.unread(unit, part, found.err)
		}
		fmt.Fprintf(sum, "%s %d %v\n", part, len(found.content), found.err)
		sum.Write(found.content)
	}
	if len(s.Data) == 0 {
		return func() { x.remove(unit) }
	}
	f := &file{sum: [sha256.Size]byte(sum.Sum(nil))}
	if x.has(unit, f.sum) {
		return func() {}
	}
	at := x.origin(unit)
	namespace, name, _ := strings.Cut(filepath.ToSlash(unit), "/")
	if !isPlace(namespace, name) {
		f.problems = []problem.Diagnostic{{
			Severity: problem.Error, Code: "misplaced", Origin: at, Reason: "a credential is in NAMESPACE/NAME of the directory, two valid names",
			Advice: "move its files to such a place", Effect: "the files have no effect",
		}}
	} else {
		s.Namespace, s.Name = namespace, name
		var v ident.Value
		v, f.cut = l.value(s, unread)
		f.entries = []entry{newEntry(ident.Key{Kind: "Secret", Namespace: namespace, Name: name}, v, at)}
	}
	return func() { x.store(unit, f) }
}

// partRead is what was read of a part of a credential.
type partRead struct {
	content []byte
	err     error
}

// parts reads the parts of a credential that exist, by name.
func (credentials) parts(t *tree, unit string) iter.Seq2[string, partRead] {
	return func(yield func(string, partRead) bool) {
		for _, part := range parts {
			var check func(fs.FileInfo) error
			if part == keyFile {
				check = private
			}
			b, err := t.read(filepath.Join(unit, part), maxPart, check)
			if errors.Is(err, fs.ErrNotExist) && !t.exists(filepath.Join(unit, part)) {
				continue
			}
			if !yield(part, partRead{b, err}) {
				return
			}
		}
	}
}

// private fails for a key file that others than its owner can read.
func private(info fs.FileInfo) error {
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return openError(mode)
	}
	return nil
}

// openError is the mode of a key file that is not private.
type openError fs.FileMode

// Error returns the mode.
func (e openError) Error() string {
	return fmt.Sprintf("group or others may read it, or write it (mode %04o)", fs.FileMode(e))
}

// unread returns the problem of a file that must not or cannot be read.
func (l credentials) unread(unit, part string, err error) *problem.Diagnostic {
	path := filepath.Join(l.dir, unit, part)
	d := &problem.Diagnostic{Field: fmt.Sprintf("data[%q]", part), Reason: fmt.Sprintf("%s cannot be used: %v", path, err)}
	if _, open := errors.AsType[openError](err); open {
		d.Reason = fmt.Sprintf("%s holds a key, and %v; run: chmod 600 '%s' (in a pod: defaultMode: 0400 of the volume), and replace the key if others had access", path, err, path)
	}
	return d
}

// value returns the value of a credential on the log. cut: its files may be half
// written, because it is not good as it is.
func (l credentials) value(s credential.Source, bad *problem.Diagnostic) (v ident.Value, cut bool) {
	k, _ := kind.ByName("Secret")
	if bad == nil {
		ref, err := credential.Reference(s, l.options)
		switch {
		case err != nil:
			errors.As(err, &bad) // as Reference promises
		case ref == nil:
			bad = &problem.Diagnostic{Field: "data", Reason: "holds neither tls.crt with tls.key nor ca.crt"}
		default:
			b, err := k.Encode(ref)
			if err == nil {
				return ident.Value{Type: k.TypeURL, Bytes: b}, len(credential.Judge(ref).Problems) > 0
			}
			bad = &problem.Diagnostic{Field: "data", Reason: err.Error()}
		}
	}
	return kind.Undecoded(nil, "", bad), true
}
