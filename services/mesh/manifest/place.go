package manifest

import (
	"strings"

	"go.yaml.in/yaml/v3"
)

// Place finds the field on a line of Spec, counted from 1. It returns the field's
// path, which begins with "spec", and its line in the file.
func (d *Document) Place(specLine int) (path string, line int) {
	path, line = d.PlaceInObject(d.specLine + specLine)
	if path == "" {
		path = "spec"
	}
	return path, line
}

// PlaceInObject finds the field on a line of Object, counted from 1. It returns
// the field's path, empty for the object itself, and its line in the file.
func (d *Document) PlaceInObject(objectLine int) (path string, line int) {
	line = d.Line
	d.visit(func(l int, p string, n *yaml.Node) {
		if l == objectLine {
			path, line = p, d.start+n.Line
		}
	})
	return path, line
}

// FieldLine returns the line in the file of the field with a path like
// "spec.resource.name". It ignores case and underscores, as protobuf's JSON does.
// If the document does not have the path, it is the line of the longest part of
// the path that the document has.
func (d *Document) FieldLine(path string) int {
	line, longest, want := d.Line, 0, normal(path)
	d.visit(func(_ int, p string, n *yaml.Node) {
		if got := normal(p); len(got) > longest && strings.HasPrefix(want, got) {
			line, longest = d.start+n.Line, len(got)
		}
	})
	return line
}

// visit calls place for each line of the object's JSON.
func (d *Document) visit(place func(line int, path string, n *yaml.Node)) {
	if len(d.top) == 0 {
		return
	}
	shared := NewAllowance() // at least what Parse had
	e := encoder{reader: reader{d.start, newBudget(d.node, shared)}, place: place}
	_ = e.object(d.node, d.top, &Document{}) // Parse has returned its error
}

// normal returns path in the form that FieldLine compares: a dot after each part.
func normal(path string) string {
	return strings.ToLower(strings.NewReplacer("_", "", `["`, ".", `"]`, "", "[", ".", "]", "").Replace(path)) + "."
}
