package manifest

import (
	"strings"

	"go.yaml.in/yaml/v3"
)

// Place finds what a line of Spec holds, from 1: the path of the field, which
// begins with "spec", and its line in the file.
func (d *Document) Place(specLine int) (path string, line int) {
	path, line = d.PlaceInObject(d.specLine + specLine)
	if path == "" {
		path = "spec"
	}
	return path, line
}

// PlaceInObject finds what a line of Object holds, from 1: the path of the
// field, which is empty for the object itself, and its line in the file.
func (d *Document) PlaceInObject(objectLine int) (path string, line int) {
	line = d.Line
	d.visit(func(l int, p string, n *yaml.Node) {
		if l == objectLine {
			path, line = p, d.start+n.Line
		}
	})
	return path, line
}

// FieldLine is the line in the file of a field of the object, by its path
// ("spec.resource.name"). Case and underscores do not count, as in protobuf's
// JSON. Of a path that the document does not have, it is the line of the
// longest part that it has.
func (d *Document) FieldLine(path string) int {
	line, longest, want := d.Line, 0, normal(path)
	d.visit(func(_ int, p string, n *yaml.Node) {
		if got := normal(p); len(got) > longest && strings.HasPrefix(want, got) {
			line, longest = d.start+n.Line, len(got)
		}
	})
	return line
}

// visit walks the object as it was turned into JSON.
func (d *Document) visit(place func(line int, path string, n *yaml.Node)) {
	if len(d.top) == 0 {
		return
	}
	e := encoder{reader: reader{d.start}, place: place}
	_ = e.object(d.node, d.top, &Document{}) // what it says was said by Parse
}

// normal is path with a dot after each part, as it is compared.
func normal(path string) string {
	return strings.ToLower(strings.NewReplacer("_", "", `["`, ".", `"]`, "", "[", ".", "]", "").Replace(path)) + "."
}
