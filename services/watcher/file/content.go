package file

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

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
	at     int            // the line of the first problem of the object, or line
	object watcher.Object // without Observed
}

// content is the content of a file.
type content struct {
	entries []entry
	// broken: one of the documents cannot be attributed to an object.
	broken   bool
	problems []problem.Diagnostic
	// texts are the chunks of the file without problems, by the hash of their texts.
	texts map[[sha256.Size]byte]known
}

// known is a chunk of a file that need not be parsed again: its first line, and where
// its entries are among those of the file.
type known struct{ start, from, to int }

// parse reads a file for the control plane of a revision. It takes the objects of documents
// that the file held before, with the same text, from there. It is pure.
func parse(name, revision string, data []byte, before *content) content {
	p := parser{name: origin(name), revision: revision}
	if len(data) == 0 {
		p.unclear(problem.Diagnostic{
			Severity: problem.Error, Code: "unreadable", Line: 1, Reason: "the file is empty; its writer may not have finished",
			Advice: "remove it, or write a comment into it, if it is meant to hold nothing",
		})
		return p.content
	}
	chunks := manifest.Split(data)
	p.texts = make(map[[sha256.Size]byte]known, len(chunks))
	parsed, shared := make([]chunk, len(chunks)), manifest.NewAllowance()
	sideBySide(len(chunks), func(i int) { parsed[i] = p.chunk(chunks[i], before) })
	for i, c := range parsed {
		switch {
		case c.is != nil:
			p.again(chunks[i].Start, c, before)
		case !c.alone:
			p.add(c.sum, chunks[i].Start, p.documents(chunks[i].Documents(shared)))
		default:
			p.add(c.sum, chunks[i].Start, c.content)
		}
	}
	return p.content
}

// chunk is what one chunk of a file holds, as far as it can be read without the others.
type chunk struct {
	sum [sha256.Size]byte
	is  *known // the same text in the file before; nil: the text is new
	// alone: content is complete; else the chunk needs the allowance of its file.
	alone   bool
	content content
}

func (p *parser) chunk(text manifest.Chunk, before *content) chunk {
	c := chunk{sum: sha256.Sum256(text.Text)}
	if k, ok := before.texts[c.sum]; ok {
		c.is = &k
		return c
	}
	var docs []manifest.Document
	if docs, c.alone = text.Alone(); c.alone {
		c.content = p.documents(docs)
	}
	return c
}

// sideBySide calls f for the numbers below n, on all processors.
func sideBySide(n int, f func(int)) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	all.Wait()
}

// origin returns the name of a file for people and the log.
func origin(name string) string { return strings.ToValidUTF8(filepath.ToSlash(name), "?") }

type parser struct {
	name, revision string
	content
}

// add adds what a chunk holds. Reasons of problems may name lines, so that a chunk with
// one is parsed each time.
func (p *parser) add(sum [sha256.Size]byte, start int, c content) {
	k := known{start, len(p.entries), len(p.entries) + len(c.entries)}
	p.entries = append(p.entries, c.entries...)
	p.problems = append(p.problems, c.problems...)
	p.broken = p.broken || c.broken
	if len(c.problems) == 0 && !slices.ContainsFunc(c.entries, func(e entry) bool { return e.object.Value.Type == ident.Undecoded }) {
		p.texts[sum] = k
	}
}

// again adds what a chunk held before, which begins at another line now.
func (p *parser) again(start int, c chunk, before *content) {
	is := *c.is
	now := known{start, len(p.entries), len(p.entries) + is.to - is.from}
	p.entries = append(p.entries, before.entries[is.from:is.to]...)
	if moved := start - is.start; moved != 0 {
		for i := now.from; i < now.to; i++ {
			e := &p.entries[i]
			e.line += moved
			e.at += moved
			e.object.Origin = p.origin(e.at)
		}
	}
	p.texts[c.sum] = now
}

// documents returns what documents hold.
func (p *parser) documents(docs []manifest.Document) content {
	one := parser{name: p.name, revision: p.revision}
	for i := range docs {
		one.document(&docs[i])
	}
	return one.content
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
	e := newEntry(k, v, p.origin(at))
	e.line, e.at, e.object.Trace = d.Line, at, d.Metadata.Annotations[validate.TraceAnnotation]
	p.entries = append(p.entries, e)
}

func newEntry(k ident.Key, v ident.Value, origin string) entry {
	sum := sha256.Sum256(append([]byte(v.Type), v.Bytes...))
	return entry{key: k, object: watcher.Object{
		Kind: k.Kind, Namespace: k.Namespace, Name: k.Name, Value: v, SourceVersion: hex.EncodeToString(sum[:6]), Origin: origin, Actor: "file",
	}}
}

// payload returns the payload of an object, and the line of the first problem in it.
// An object that cannot be decoded has a payload too, so that the fold keeps its last
// good value and reports the problem.
func (p *parser) payload(d *manifest.Document, o document.Object, bad *problem.Diagnostic) (ident.Value, int) {
	if bad == nil {
		b, err := o.Kind.Encode(o.Message)
		if err == nil {
			return ident.Value{Type: o.Kind.TypeOf(o.Message), Bytes: b}, document.FirstProblem(d, o)
		}
		bad = &problem.Diagnostic{Line: d.Line, Field: "spec", Reason: err.Error()}
	}
	return kind.Undecoded(d.Text(), "application/yaml", bad), bad.Line
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
