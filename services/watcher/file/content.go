package file

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/document"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/manifest"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher"
)

// entry is an object in a file.
type entry struct {
	key    ident.Key // without the shard
	line   int
	object watcher.Object // without Observed
}

// content is the content of a file.
type content struct {
	entries []entry
	// broken: one of the documents cannot be attributed to an object.
	broken   bool
	problems []problem.Diagnostic
}

// parse reads a file for the control plane of a revision. It is pure.
func parse(name, revision string, data []byte) content {
	p := parser{name: origin(name), revision: revision}
	if len(data) == 0 {
		p.unclear(problem.Diagnostic{
			Severity: problem.Error, Code: "unreadable", Line: 1, Reason: "the file is empty; its writer may not have finished",
			Advice: "remove it, or write a comment into it, if it is meant to hold nothing",
		})
		return p.content
	}
	for _, d := range manifest.Parse(data) {
		p.document(&d)
	}
	return p.content
}

// origin returns the name of a file for people and the log.
func origin(name string) string { return strings.ToValidUTF8(filepath.ToSlash(name), "?") }

type parser struct {
	name, revision string
	content
}

func (p *parser) document(d *manifest.Document) {
	o, bad := document.Read(d)
	switch {
	case o.Foreign:
		p.problems = append(p.problems, p.located(*bad))
		return
	case o.Kind == nil:
		p.unclear(*bad)
		return
	case !o.Kind.InRevision(p.revision, d.Metadata.Labels):
		return
	}
	k := ident.Key{Kind: o.Kind.Name, Namespace: o.Namespace, Name: o.Name}
	v, at := p.payload(d, o, bad)
	v.Created = d.Metadata.Created
	e := newEntry(k, v, at)
	e.line, e.object.Trace = d.Line, d.Metadata.Annotations[validate.TraceAnnotation]
	p.entries = append(p.entries, e)
}

func newEntry(k ident.Key, v ident.Value, origin string) entry {
	sum := sha256.Sum256(append([]byte(v.Type), v.Bytes...))
	return entry{key: k, object: watcher.Object{
		Kind: k.Kind, Namespace: k.Namespace, Name: k.Name, Value: v, SourceVersion: hex.EncodeToString(sum[:6]), Origin: origin, Actor: "file",
	}}
}

// payload returns the payload of an object, and its origin: the line of the
// first problem in it. An object that cannot be decoded has a payload too, so
// that the fold keeps its last good value and reports the problem.
func (p *parser) payload(d *manifest.Document, o document.Object, bad *problem.Diagnostic) (ident.Value, string) {
	if bad == nil {
		b, err := o.Kind.Encode(o.Message)
		if err == nil {
			return ident.Value{Type: o.Kind.TypeOf(o.Message), Bytes: b}, p.origin(document.FirstProblem(d, o))
		}
		bad = &problem.Diagnostic{Line: d.Line, Field: "spec", Reason: err.Error()}
	}
	return kind.Undecoded(d.Text(), "application/yaml", bad), p.origin(bad.Line)
}

func (p *parser) origin(line int) string { return fmt.Sprintf("%s:%d", p.name, line) }

// located replaces the line of d by the file and the line.
func (p *parser) located(d problem.Diagnostic) problem.Diagnostic {
	d.Origin, d.Line = p.origin(d.Line), 0
	return d
}

// unclear adds a problem in a document that may be any object.
func (p *parser) unclear(d problem.Diagnostic) {
	p.broken = true
	d.Effect = "what the file held before stays; nothing of it is removed"
	p.problems = append(p.problems, p.located(d))
}
