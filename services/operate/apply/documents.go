package apply

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/document"
	"meshlog.dev/services/mesh/keymaterial"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/manifest"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/operate/command"
)

// item is an object of a document.
type item struct {
	key   ident.Key
	value ident.Value // zero for one that is only named
	hash  ident.Hash
	// resourceVersion is what the document says of the object that it is made from.
	resourceVersion ident.Position
	trace           string
	document        *manifest.Document // nil: the command line names the object
	file            string
}

// take makes i an object of a source.
func (i *item) take(s ident.Shard) {
	i.key.Source, i.key.Instance = s.Source, s.Instance
	i.hash = events.ContentHash(i.key, i.value)
}

// origin returns the place of a field in the document.
func (i *item) origin(field string) string {
	return place(i.file, i.document.FieldLine(field))
}

func place(file string, line int) string { return fmt.Sprintf("%s:%d", file, max(line, 1)) }

// documents are the objects of files, and the problems of the documents.
type documents struct {
	shard    ident.Shard
	items    []*item
	problems []problem.Diagnostic
	// named: only the names of the objects count, because they are to be deleted.
	named bool
	first map[ident.Key]string // where each key is
}

// maxFile is the largest file that is read.
const maxFile = 64 << 20

// read reads files, directories, and "-" for stdin.
func (d *documents) read(paths []string, stdin io.Reader) error {
	d.first = map[ident.Key]string{}
	for _, path := range paths {
		if path == "-" {
			text, err := limited(stdin)
			if err != nil {
				return fmt.Errorf("standard input: %w", err)
			}
			d.parse("stdin", text)
			continue
		}
		files, err := filesOf(path)
		if err != nil {
			return err
		}
		for _, file := range files {
			text, err := readFile(file)
			if err != nil {
				return err
			}
			d.parse(filepath.ToSlash(file), text)
		}
	}
	if len(d.items)+len(d.problems) == 0 {
		return fmt.Errorf("%s: no object is in it", strings.Join(paths, ", "))
	}
	return nil
}

// filesOf returns the files of a path: itself or, of a directory, those that the file
// watcher reads.
func filesOf(path string) (files []string, err error) {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return []string{path}, err
	}
	err = filepath.WalkDir(path, func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case strings.HasPrefix(e.Name(), ".") && name != path:
			if e.IsDir() {
				return fs.SkipDir
			}
		case !e.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)):
			files = append(files, name)
		}
		return nil
	})
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s: holds no file that ends in .yaml, .yml or .json", path)
	}
	return files, err
}

func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := limited(f)
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return text, err
}

func limited(r io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("it has more than %d bytes", maxFile)
	}
	return text, err
}

func (d *documents) parse(file string, text []byte) {
	for _, doc := range manifest.Parse(text) {
		d.document(file, &doc)
	}
}

func (d *documents) document(file string, doc *manifest.Document) {
	o, bad := document.Read(doc)
	if o.Kind == nil || bad != nil && !d.named {
		d.problem(file, *bad)
		return
	}
	i := &item{
		key:  ident.Key{Source: d.shard.Source, Instance: d.shard.Instance, Kind: o.Kind.Name, Namespace: o.Namespace, Name: o.Name},
		file: file, document: doc, trace: doc.Metadata.Annotations[validate.TraceAnnotation],
	}
	at := place(file, doc.Line)
	if first, twice := d.first[i.key]; twice {
		d.refuse(i, "metadata.name", first+" has the same object", "remove one of the two")
		return
	}
	d.first[i.key] = at
	if text := doc.Metadata.ResourceVersion; text != "" {
		var err error
		if i.resourceVersion, err = ident.ParsePosition(text); err != nil {
			d.refuse(i, "metadata.resourceVersion", fmt.Sprintf("%q is no version of an object of meshlog, which is like 1795648624.11", text), "remove it, or use the one that `meshlog get` prints")
			return
		}
	}
	if !d.named {
		d.encode(i, &o)
	}
	d.items = append(d.items, i)
}

// encode sets the value of an item.
func (d *documents) encode(i *item, o *document.Object) {
	b, err := o.Kind.Encode(o.Message)
	if err != nil {
		d.refuse(i, "spec", err.Error(), "correct the object")
		return
	}
	i.value = ident.Value{Type: o.Kind.TypeOf(o.Message), Bytes: b, Created: i.document.Metadata.Created}
	i.hash = events.ContentHash(i.key, i.value)
	if found, holds := keymaterial.Find(i.value); holds {
		d.refuse(i, found.Field, "holds a private key ("+found.Form+"), which every reader of the log could read",
			"give the key to proxies as a file or put it into a Secret, name that here, and replace the key")
		return
	}
	switch b, err := events.Encode(put(i, newSession(), 1, 1)); {
	case err != nil:
		d.refuse(i, "metadata.name", err.Error(), "correct it")
	case len(b) > maxEvent:
		d.refuse(i, "", fmt.Sprintf("the object has %d bytes, more than the log takes", len(i.value.Bytes)), "make it smaller, or split it")
	}
}

// problem adds the problem of a document, and refuse the error of an item.
func (d *documents) problem(file string, p problem.Diagnostic) {
	p.Origin, p.Line, p.Effect = place(file, p.Line), 0, "" // the command says what happens
	d.problems = append(d.problems, p)
}

func (d *documents) refuse(i *item, field, reason, advice string) {
	d.problem(i.file, problem.Diagnostic{
		Severity: problem.Error, Code: "invalid", Key: i.key, Line: i.document.FieldLine(field), Field: field, Reason: reason, Advice: advice,
	})
}

// failed reports whether one of the problems is an error.
func failed(problems []problem.Diagnostic) bool {
	return slices.ContainsFunc(problems, func(p problem.Diagnostic) bool { return p.Severity == problem.Error })
}

// errNothing is the error of a command that stopped because of errors it has printed.
func errNothing(problems []problem.Diagnostic, done string) error {
	return errors.New(command.Plural(countErrors(problems), "error", "errors") + "; nothing was " + done)
}

func countErrors(problems []problem.Diagnostic) (n int) {
	for _, p := range problems {
		if p.Severity == problem.Error {
			n++
		}
	}
	return n
}
