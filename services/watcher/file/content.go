package file

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/document"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/manifest"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher"
)

// key names an object of the directory.
type key struct{ kind, namespace, name string }

func (k key) String() string {
	if k.namespace == "" {
		return k.kind + " " + k.name
	}
	return k.kind + " " + k.namespace + "/" + k.name
}

// entry is an object in a file.
type entry struct {
	key    key
	line   int
	object watcher.Object // without Observed
}

// content is what a file says.
type content struct {
	entries []entry
	// broken says that there is a document of which it is not known which
	// object it is.
	broken   bool
	problems []problem.Diagnostic
}

// parse reads a file. It is pure.
func parse(name string, data []byte) content {
	p := parser{name: origin(name)}
	if len(data) == 0 {
		p.unclear("unreadable", &manifest.Error{
			Line: 1, Reason: "the file is empty, as one that is being written",
			Advice: "remove it, or write a comment into it, if it is meant to hold nothing",
		})
		return p.content
	}
	for _, d := range manifest.Parse(data) {
		p.document(&d)
	}
	return p.content
}

// origin is the name of a file as people and the log see it.
func origin(name string) string { return strings.ToValidUTF8(filepath.ToSlash(name), "?") }

type parser struct {
	name string
	content
}

func (p *parser) document(d *manifest.Document) {
	o, err := document.Read(d)
	var foreign *document.ForeignError
	var bad *manifest.Error
	switch {
	case errors.As(err, &foreign):
		p.foreign(d, foreign)
		return
	case errors.As(err, &bad) && o.Kind == nil:
		p.unclear(codeOf(d, bad), bad)
		return
	}
	of := key{o.Kind.Name, o.Namespace, o.Name}
	e := entry{key: of, line: d.Line, object: watcher.Object{
		Kind: of.kind, Namespace: of.namespace, Name: of.name, Actor: "file",
		Trace: d.Metadata.Annotations[validate.TraceAnnotation],
	}}
	e.object.Value, e.object.Origin = p.payload(d, o, bad)
	e.object.Value.Created = d.Metadata.Created
	sum := sha256.Sum256(append([]byte(e.object.Value.Type), e.object.Value.Bytes...))
	e.object.SourceVersion = hex.EncodeToString(sum[:6])
	p.entries = append(p.entries, e)
}

// codeOf is the code of what is wrong with a document that may be any object's.
func codeOf(d *manifest.Document, bad *manifest.Error) string {
	switch {
	case d.Err != nil:
		return "syntax"
	case bad.Field == "kind":
		return "unknown-kind"
	}
	return "invalid"
}

// payload is that of an object, and where to look for it: at the first thing
// that is wrong in it. One that cannot be decoded is offered as such, for it
// to keep its last good value and to be reported with it.
func (p *parser) payload(d *manifest.Document, o document.Object, bad *manifest.Error) (ident.Value, string) {
	if bad == nil {
		b, err := o.Kind.Encode(o.Message)
		if err == nil {
			return ident.Value{Type: o.Kind.TypeURL, Bytes: b}, p.origin(document.FirstProblem(d, o))
		}
		bad = &manifest.Error{Line: d.Line, Field: "spec", Reason: err.Error()}
	}
	return undecoded(d, bad), p.origin(bad.Line)
}

// undecoded says no line, so that moving an object in its file changes
// nothing; the object's origin does.
func undecoded(d *manifest.Document, bad *manifest.Error) ident.Value {
	text := d.Text()
	if validate.HasPrivateKey(text) {
		text = nil
	}
	u := &registryv1.Undecoded{
		Data: text, MediaType: "application/yaml",
		Field: strings.ToValidUTF8(bad.Field, "?"), Error: strings.ToValidUTF8(bad.Reason, "?"),
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(u)
	if err != nil { // texts and bytes: it cannot be
		b = nil
	}
	return ident.Value{Type: ident.Undecoded, Bytes: b}
}

// foreign is a document that meshlog does not take in.
func (p *parser) foreign(d *manifest.Document, why *document.ForeignError) {
	of := key{d.Kind, d.Metadata.Namespace, d.Metadata.Name}
	p.warn("unknown-kind", of, d.Line, "kind", why.Reason, why.Advice, "the object has no effect")
	if why.Secret {
		last := &p.problems[len(p.problems)-1]
		last.Severity, last.Code = problem.Error, "secret"
	}
}

func (p *parser) origin(line int) string { return fmt.Sprintf("%s:%d", p.name, line) }

// unclear is a problem in a document that may be any object's.
func (p *parser) unclear(code string, e *manifest.Error) {
	p.broken = true
	p.problems = append(p.problems, problem.Diagnostic{
		Severity: problem.Error, Code: code, Origin: p.origin(e.Line), Field: e.Field, Reason: e.Reason, Advice: e.Advice,
		Effect: "what the file held before stays; nothing of it is removed",
	})
}

func (p *parser) warn(code string, of key, line int, field, reason, advice, effect string) {
	p.problems = append(p.problems, problem.Diagnostic{
		Severity: problem.Warning, Code: code, Origin: p.origin(line), Field: field, Reason: reason, Advice: advice, Effect: effect,
		Key: ident.Key{Kind: of.kind, Namespace: of.namespace, Name: of.name},
	})
}
