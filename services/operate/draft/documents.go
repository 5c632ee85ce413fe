package draft

import (
	"errors"
	"fmt"
	"slices"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/document"
	"meshlog.dev/services/mesh/keymaterial"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/manifest"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/operate/command"
)

// Item is an object of a document.
type Item struct {
	Key   ident.Key
	Value ident.Value // zero for one that is only named
	Hash  ident.Hash
	// ResourceVersion is the position of the object from which the document was made; zero: the
	// document does not say.
	ResourceVersion ident.Position
	Trace           string
	Document        *manifest.Document // nil: the command line names the object
	File            string
}

// take makes i an object of a source.
func (i *Item) take(s ident.Shard) {
	i.Key.Source, i.Key.Instance = s.Source, s.Instance
	i.Hash = events.ContentHash(i.Key, i.Value)
}

// Place returns the place of a field in the document.
func (i *Item) Place(field string) string {
	return place(i.File, i.Document.FieldLine(field))
}

func place(file string, line int) string { return fmt.Sprintf("%s:%d", file, max(line, 1)) }

// Documents are the objects of files, and the problems of the documents.
type Documents struct {
	Shard    ident.Shard
	Items    []*Item
	Problems []problem.Diagnostic
	// Named: only the names of the objects count, because they are to be deleted.
	Named bool
	first map[ident.Key]string // where each key is
}

// Parse adds the objects of a text, which is called file in messages.
func (d *Documents) Parse(file string, text []byte) {
	if d.first == nil {
		d.first = map[ident.Key]string{}
	}
	for _, doc := range manifest.Parse(text) {
		d.document(file, &doc)
	}
}

func (d *Documents) document(file string, doc *manifest.Document) {
	o, bad := document.Read(doc)
	if o.Kind == nil || bad != nil && !d.Named {
		d.problem(file, *bad)
		return
	}
	i := &Item{
		Key:  ident.Key{Source: d.Shard.Source, Instance: d.Shard.Instance, Kind: o.Kind.Name, Namespace: o.Namespace, Name: o.Name},
		File: file, Document: doc, Trace: doc.Metadata.Annotations[validate.TraceAnnotation],
	}
	at := place(file, doc.Line)
	if first, twice := d.first[i.Key]; twice {
		d.refuse(i, "metadata.name", first+" has the same object", "remove one of the two")
		return
	}
	d.first[i.Key] = at
	if text := doc.Metadata.ResourceVersion; text != "" {
		var err error
		if i.ResourceVersion, err = ident.ParsePosition(text); err != nil {
			d.refuse(i, "metadata.resourceVersion", fmt.Sprintf("%q is no version of an object of meshlog, which is like 1795648624.11", text), "remove it, or use the one that `meshlog get` prints")
			return
		}
	}
	if !d.Named {
		d.encode(i, &o)
	}
	d.Items = append(d.Items, i)
}

// encode sets the value of an item.
func (d *Documents) encode(i *Item, o *document.Object) {
	b, err := o.Kind.Encode(o.Message)
	if err != nil {
		d.refuse(i, "spec", err.Error(), "correct the object")
		return
	}
	i.Value = ident.Value{Type: o.Kind.TypeOf(o.Message), Bytes: b, Created: i.Document.Metadata.Created}
	i.Hash = events.ContentHash(i.Key, i.Value)
	if found, holds := keymaterial.Find(i.Value); holds {
		d.refuse(i, found.Field, "holds a private key ("+found.Form+"), which every reader of the log could read",
			"give the key to proxies as a file or put it into a Secret, name that here, and replace the key")
		return
	}
	switch b, err := events.Encode(put(i, NewSession(), 1, 1)); {
	case err != nil:
		d.refuse(i, "metadata.name", err.Error(), "correct it")
	case len(b) > maxEvent:
		d.refuse(i, "", fmt.Sprintf("the object has %d bytes, more than the log takes", len(i.Value.Bytes)), "make it smaller, or split it")
	}
}

// problem adds the problem of a document, and refuse the error of an item.
func (d *Documents) problem(file string, p problem.Diagnostic) {
	p.Origin, p.Line, p.Effect = place(file, p.Line), 0, "" // the command says what happens
	d.Problems = append(d.Problems, p)
}

func (d *Documents) refuse(i *Item, field, reason, advice string) {
	d.problem(i.File, problem.Diagnostic{
		Severity: problem.Error, Code: "invalid", Key: i.Key, Line: i.Document.FieldLine(field), Field: field, Reason: reason, Advice: advice,
	})
}

// Failed reports whether one of the problems is an error.
func Failed(problems []problem.Diagnostic) bool {
	return slices.ContainsFunc(problems, func(p problem.Diagnostic) bool { return p.Severity == problem.Error })
}

// ErrNothing returns the error of a command that stopped because of errors it has printed.
func ErrNothing(problems []problem.Diagnostic, done string) error {
	return errors.New(command.Plural(CountErrors(problems), "error", "errors") + "; nothing was " + done)
}

// CountErrors returns how many of the problems are errors.
func CountErrors(problems []problem.Diagnostic) (n int) {
	for _, p := range problems {
		if p.Severity == problem.Error {
			n++
		}
	}
	return n
}
