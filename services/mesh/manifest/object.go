package manifest

import (
	"fmt"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/nearest"
)

// object reads the envelope of an object and turns it into JSON.
func (c Chunk) object(n *yaml.Node, shared *Allowance) Document {
	r := reader{c.Start, newBudget(n, shared)}
	n = resolve(n)
	d := Document{Line: c.Start + n.Line, node: n, start: c.Start}
	d.Err = r.object(n, &d)
	return d
}

// spec returns the document of a chunk that is only a spec.
func (c Chunk) spec() Document {
	nodes, bad := c.nodes()
	if bad != nil {
		return Document{Line: 1, Err: bad}
	}
	if len(nodes) == 0 { // null
		return Document{Object: []byte("{}"), Spec: []byte("{}"), Line: 1}
	}
	r := reader{c.Start, newBudget(nodes[0], NewAllowance())}
	n := resolve(nodes[0])
	whole := &yaml.Node{Kind: yaml.MappingNode, Line: n.Line, Content: []*yaml.Node{{Kind: yaml.ScalarNode, Value: "spec", Line: n.Line}, n}}
	d := Document{Line: c.Start + n.Line, node: whole, start: c.Start, top: []entry{{key: "spec", at: n, value: n}}}
	if n.Kind != yaml.MappingNode {
		d.Err = r.fail(n, "spec", "write fields, each on a line", "is %s, not a mapping", describe(n))
		return d
	}
	e := encoder{reader: r}
	d.Err = e.object(whole, d.top, &d)
	return d
}

// reader reads an object whose node has line numbers after start.
type reader struct {
	start int
	*budget
}

func (r reader) fail(n *yaml.Node, field, advice, format string, args ...any) *problem.Diagnostic {
	return fail(r.start+n.Line, field, advice, format, args...)
}

func fail(line int, field, advice, format string, args ...any) *problem.Diagnostic {
	return &problem.Diagnostic{
		Severity: problem.Error, Code: "syntax", Line: line, Field: field, Reason: fmt.Sprintf(format, args...), Advice: advice,
	}
}

func (r reader) object(n *yaml.Node, d *Document) *problem.Diagnostic {
	if n.Kind != yaml.MappingNode {
		return r.fail(n, "", "begin the document with apiVersion, kind and metadata", "an object is a mapping, not %s", describe(n))
	}
	top, err := r.fields(n, "")
	if err != nil {
		return err
	}
	if err := r.text(n, top, "apiVersion", "apiVersion", &d.APIVersion); err != nil {
		return err
	}
	if err := r.text(n, top, "kind", "kind", &d.Kind); err != nil {
		return err
	}
	if err := r.metadata(n, top, d); err != nil {
		return err
	}
	d.top = top
	e := encoder{reader: r}
	return e.object(n, top, d)
}

// object writes the object into d.
func (e *encoder) object(n *yaml.Node, top []entry, d *Document) *problem.Diagnostic {
	e.open = append(e.open, n)
	if err := e.entries(top, ""); err != nil {
		return err
	}
	d.Object, d.Spec, d.specLine = e.out, []byte("{}"), e.specLine
	if e.specEnd > 0 {
		d.Spec = e.out[e.specStart:e.specEnd:e.specEnd]
	}
	return nil
}

// topFields are the fields of an object.
var topFields = []string{"apiVersion", "kind", "metadata", "spec", "status"}

// Unknown returns a problem for the first field of the object that is none of
// apiVersion, kind, metadata, spec and status.
func (d *Document) Unknown() *problem.Diagnostic {
	for _, f := range d.top {
		if slices.Contains(topFields, f.key) {
			continue
		}
		if meant, ok := nearest.Name(f.key, topFields); ok {
			return reader{start: d.start}.fail(f.at, f.key, "did you mean "+meant+"?", "unknown field %q", f.key)
		}
		return reader{start: d.start}.fail(f.at, f.key, "an object has apiVersion, kind, metadata and spec; move the field under spec", "unknown field %q", f.key)
	}
	return nil
}

func (r reader) metadata(n *yaml.Node, top []entry, d *Document) *problem.Diagnostic {
	m := find(top, "metadata")
	if m == nil {
		return r.fail(n, "metadata.name", "give the object a name", "is missing")
	}
	meta, err := r.fields(m, "metadata")
	if err != nil {
		return err
	}
	var md Metadata
	if find(meta, "namespace") != nil {
		if err := r.text(m, meta, "metadata.namespace", "namespace", &md.Namespace); err != nil {
			return err
		}
	}
	if err := r.text(m, meta, "metadata.name", "name", &md.Name); err != nil {
		return err
	}
	d.Metadata = md // from here on an error names the object
	if d.Metadata.Labels, err = r.texts(meta, "labels"); err != nil {
		return err
	}
	if d.Metadata.Annotations, err = r.texts(meta, "annotations"); err != nil {
		return err
	}
	if v := find(meta, "creationTimestamp"); v != nil && v.ShortTag() != "!!null" {
		t, err := time.Parse(time.RFC3339, v.Value)
		if err != nil {
			return r.fail(v, "metadata.creationTimestamp", "write it like 2026-01-31T12:00:00Z, or leave it out", "%q is not a time", v.Value)
		}
		d.Metadata.Created = t.UTC()
	}
	if v := find(meta, "resourceVersion"); v != nil && v.Kind == yaml.ScalarNode && v.ShortTag() != "!!null" {
		d.Metadata.ResourceVersion = v.Value
	}
	return nil
}

// text reads a required field: a text that is not empty.
func (r reader) text(parent *yaml.Node, fields []entry, path, key string, to *string) *problem.Diagnostic {
	v := find(fields, key)
	switch {
	case v == nil || v.ShortTag() == "!!null":
		return r.fail(parent, path, "add it", "is missing")
	case v.Kind != yaml.ScalarNode || v.ShortTag() != "!!str":
		return r.fail(v, path, "write a text; quote it if it looks like a number", "is %s", describe(v))
	case v.Value == "":
		return r.fail(v, path, "fill it in", "is empty")
	}
	*to = v.Value
	return nil
}

func (r reader) texts(meta []entry, key string) (map[string]string, *problem.Diagnostic) {
	m := find(meta, key)
	if m == nil || m.ShortTag() == "!!null" {
		return nil, nil
	}
	path := "metadata." + key
	fields, err := r.fields(m, path)
	if err != nil {
		return nil, err
	}
	out := make(map[string]string, len(fields))
	for _, f := range fields {
		if f.value.Kind != yaml.ScalarNode || f.value.ShortTag() != "!!str" {
			return nil, r.fail(f.value, join(path, f.key), "write a text; quote it if it looks like a number", "is %s", describe(f.value))
		}
		out[f.key] = f.value.Value
	}
	return out, nil
}

func describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.ShortTag() == "!!null":
		return "nothing"
	case n.ShortTag() == "!!str":
		return "a text"
	}
	return fmt.Sprintf("%s, which YAML does not read as a text", n.Value)
}
