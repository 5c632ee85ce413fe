// Package manifest reads files of objects: YAML or JSON, any number of documents a
// file, lists of kind List, anchors and merge keys. A Document knows the line of
// the file of each field.
//
// The package splits a file at its "---" lines before it parses anything, so that
// an error in one document never hides the others.
//
// It is pure, and knows no kinds.
package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"slices"
	"sort"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"meshlog.dev/services/mesh/problem"
)

// Document is one object of a file.
type Document struct {
	APIVersion string
	Kind       string
	Metadata   Metadata
	// Object is the whole object as JSON, and Spec the part under spec ("{}" if
	// there is none), laid out so that Place finds the line of each value.
	Object, Spec []byte
	// Line is where the object begins in its file, from 1.
	Line int
	// Err says why the object cannot be used; nil: it can. The other fields hold
	// what was read before the error: Kind and Metadata.Name, if set, name the
	// broken object.
	Err *problem.Diagnostic

	node     *yaml.Node // the object; nil after a syntax error
	top      []entry    // its fields
	start    int        // lines of the file before node's line 1
	specLine int        // lines of Object before Spec
}

// Metadata holds the metadata that every object may have.
type Metadata struct {
	Name        string
	Namespace   string
	Labels      map[string]string
	Annotations map[string]string
	Created     time.Time // creationTimestamp; zero if there is none
	// ResourceVersion is as written; empty if there is none.
	ResourceVersion string
}

// Parse reads a file. It returns its documents in order, and leaves out documents
// without content.
func Parse(file []byte) []Document {
	var docs []Document
	shared := NewAllowance()
	for _, c := range Split(file) {
		docs = append(docs, c.Documents(shared)...)
	}
	return docs
}

// Spec reads a text that is only the spec of an object: one YAML or JSON document,
// a mapping. Without content it is an empty mapping.
func Spec(text []byte) Document {
	chunks := Split(text)
	switch {
	case len(chunks) == 0:
		return Document{Object: []byte("{}"), Spec: []byte("{}"), Line: 1}
	case len(chunks) > 1:
		return Document{Line: 1, Err: fail(chunks[1].Start+1, "", "leave one", "there is more than one document")}
	}
	return chunks[0].spec()
}

// Chunk is the text of a file between two "---" lines, with the first of them. What it
// holds depends on no other chunk of the file, except on what the others leave of the
// Allowance.
type Chunk struct {
	Text  []byte
	Start int // lines of the file before it
}

// Split splits a file into the chunks that have content. They share its memory.
func Split(file []byte) []Chunk {
	var chunks []Chunk
	c, begin, end, line := Chunk{}, 0, 0, 0
	for l := range bytes.Lines(file) {
		if isSeparator(l) && end > begin {
			c.Text = file[begin:end:end]
			chunks = append(chunks, c)
			c, begin = Chunk{Start: line}, end
		}
		end += len(l)
		line++
	}
	c.Text = file[begin:end:end]
	chunks = append(chunks, c)
	return slices.DeleteFunc(chunks, func(c Chunk) bool { return c.first() == 0 })
}

// Alone returns the documents of the chunk if they take nothing of an Allowance.
func (c Chunk) Alone() (docs []Document, ok bool) {
	var none Allowance
	docs = c.Documents(&none)
	return docs, !none.exceeded
}

// isSeparator reports whether a line begins a document. YAML allows such a line
// nowhere else, not even in a quoted or literal text.
func isSeparator(line []byte) bool {
	rest, ok := bytes.CutPrefix(line, []byte("---"))
	return ok && (len(rest) == 0 || strings.IndexByte(" \t\r\n", rest[0]) >= 0)
}

// first returns the number of the first line with content, from 1; 0 if there are
// only comments and directives.
func (c Chunk) first() int {
	n := 0
	for l := range bytes.Lines(c.Text) {
		n++
		l = bytes.TrimSpace(bytes.TrimPrefix(l, []byte("---")))
		if len(l) > 0 && l[0] != '#' && l[0] != '%' && string(l) != "..." {
			return n
		}
	}
	return 0
}

// Documents returns the documents of the chunk in order. Those with many aliases and merge
// keys take from the allowance of their file.
func (c Chunk) Documents(shared *Allowance) []Document {
	nodes, bad := c.nodes()
	var docs []Document
	for _, n := range nodes {
		docs = append(docs, c.objects(n, shared)...)
	}
	if bad != nil {
		docs = append(docs, Document{Line: c.Start + c.first(), Err: bad})
	}
	return docs
}

// nodes returns the documents before the first syntax error, and that error.
func (c Chunk) nodes() ([]*yaml.Node, *problem.Diagnostic) {
	if json.Valid(c.Text) {
		c.Text = unescape(c.Text)
	}
	nodes, err := decode(c.Text)
	if err != nil {
		return nodes, c.syntaxError(err)
	}
	return nodes, nil
}

// decode returns the documents before the first syntax error, and that error.
func decode(text []byte) ([]*yaml.Node, error) {
	var nodes []*yaml.Node
	for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var n yaml.Node
		switch err := d.Decode(&n); {
		case errors.Is(err, io.EOF):
			return nodes, nil
		case err != nil:
			return nodes, err
		case len(n.Content) == 1 && n.Content[0].ShortTag() != "!!null":
			nodes = append(nodes, n.Content[0])
		}
	}
}

var yamlPrefix = regexp.MustCompile(`^(?:yaml: )?(?:line \d+: )?`)

// syntaxError finds the line of a syntax error, because the parser names the line
// of the collection around it. The shortest beginning of the text that has the
// same error ends at that line.
func (c Chunk) syntaxError(err error) *problem.Diagnostic {
	lines := bytes.SplitAfter(c.Text, []byte("\n"))
	n := sort.Search(len(lines), func(n int) bool {
		_, e := decode(bytes.Join(lines[:n], nil))
		return e != nil && e.Error() == err.Error()
	})
	for n = min(n, len(lines)); n > 1 && len(bytes.TrimSpace(lines[n-1])) == 0; n-- {
	}
	return fail(c.Start+max(n, 1), "", "correct the YAML there or in the lines above", "%s", yamlPrefix.ReplaceAllString(err.Error(), ""))
}

var jsonEscape = regexp.MustCompile(`\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|.)`)

// unescape resolves the two escapes of JSON that the YAML parser does not know:
// "\/" and surrogate pairs.
func unescape(text []byte) []byte {
	return jsonEscape.ReplaceAllFunc(text, func(m []byte) []byte {
		var s string
		if (string(m) == `\/` || len(m) > 2) && json.Unmarshal([]byte(`"`+string(m)+`"`), &s) == nil {
			return []byte(s)
		}
		return m
	})
}

// objects returns the objects of a document: itself, or the items of a list.
func (c Chunk) objects(n *yaml.Node, shared *Allowance) []Document {
	if kind := scalar(n, "kind"); kind != "List" || scalar(n, "apiVersion") != "v1" {
		return []Document{c.object(n, shared)}
	}
	items := field(n, "items")
	if items == nil || items.Kind != yaml.SequenceNode {
		line := c.Start + n.Line
		return []Document{{Line: line, Err: fail(line, "items", "write the objects under items, each with a leading -", "a List has a list of items")}}
	}
	var docs []Document
	for _, item := range items.Content {
		docs = append(docs, c.object(item, shared))
	}
	return docs
}

// field returns the value of a key of a mapping; nil if there is none.
func field(n *yaml.Node, key string) *yaml.Node {
	if n = resolve(n); n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

func scalar(n *yaml.Node, key string) string {
	if v := field(n, key); v != nil && v.Kind == yaml.ScalarNode {
		return v.Value
	}
	return ""
}

// Text returns the object as YAML, for people. Equal objects have equal texts.
func (d *Document) Text() []byte {
	if d.node == nil {
		return nil
	}
	b, _ := yaml.Marshal(d.node) // nil on an error
	return b
}
