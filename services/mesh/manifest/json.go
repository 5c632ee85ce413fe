package manifest

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"meshlog.dev/services/mesh/problem"
)

// maxJSON bounds the size of a document whose aliases refer to aliases.
const maxJSON = 16 << 20

// entry is a key of a mapping with its value. Aliases are resolved.
type entry struct {
	key   string
	at    *yaml.Node // the key
	value *yaml.Node
}

func find(fields []entry, key string) *yaml.Node {
	if i := slices.IndexFunc(fields, func(f entry) bool { return f.key == key }); i >= 0 {
		return fields[i].value
	}
	return nil
}

// fields returns the entries of a mapping in the order of the file, then the
// entries of its merge keys ("<<") that it does not have itself.
func (r reader) fields(n *yaml.Node, path string) ([]entry, *problem.Diagnostic) {
	return r.merged(n, path, 0)
}

const maxMerges = 32 // nested merge keys

func (r reader) merged(n *yaml.Node, path string, depth int) ([]entry, *problem.Diagnostic) {
	n = resolve(n)
	if known, ok := r.merges[n]; ok {
		return known, nil
	}
	if n.Kind != yaml.MappingNode {
		return nil, r.fail(n, path, "write fields under it, each on a line, indented", "is %s, not a mapping", describe(n))
	}
	if depth > maxMerges {
		return nil, r.fail(n, path, "replace merge keys (<<) by their fields", "merge keys refer to each other more than %d deep", maxMerges)
	}
	if err := r.spend(n, path, len(n.Content)/2*costOfNode); err != nil {
		return nil, err
	}
	seen := make(map[string]*yaml.Node, len(n.Content)/2)
	var out []entry
	var merges []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], resolve(n.Content[i+1])
		name := resolve(k)
		switch {
		case name.Kind != yaml.ScalarNode || name.ShortTag() == "!!null":
			return nil, r.fail(k, path, "use a text as key", "a key is %s", describe(name))
		case name.ShortTag() == "!!merge":
			merges = append(merges, v)
		case seen[name.Value] != nil:
			return nil, r.fail(k, join(path, name.Value), "leave one of them", "key %q is there twice, first on line %d", name.Value, r.start+seen[name.Value].Line)
		default:
			seen[name.Value] = k
			out = append(out, entry{key: name.Value, at: k, value: v})
		}
	}
	for _, m := range merges {
		from := []*yaml.Node{m}
		if m.Kind == yaml.SequenceNode {
			from = m.Content
		}
		for _, m := range from {
			more, err := r.merged(m, path, depth+1)
			if err == nil {
				// The same entries may be merged again and again.
				err = r.spend(m, path, (1+len(more))*costOfNode)
			}
			if err != nil {
				return nil, err
			}
			for _, e := range more {
				if seen[e.key] == nil {
					seen[e.key] = e.at
					out = append(out, e)
				}
			}
		}
	}
	if len(merges) > 0 {
		r.merges[n] = out
	}
	return out, nil
}

func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// encoder writes JSON with each key and each element on a line of its own.
type encoder struct {
	reader
	out   []byte
	open  []*yaml.Node // the collections around, to find one that contains itself
	line  int          // lines written before the current one
	place func(line int, path string, n *yaml.Node)
	// The object's spec is out[specStart:specEnd], behind specLine lines.
	specStart, specEnd, specLine int
}

func (e *encoder) newline() {
	e.out = append(e.out, '\n')
	e.line++
}

// at reports what is on the current line.
func (e *encoder) at(path string, n *yaml.Node) {
	if e.place != nil {
		e.place(e.line+1, path, n)
	}
}

func (e *encoder) value(n *yaml.Node, path string) *problem.Diagnostic {
	n = resolve(n)
	if err := e.spend(n, path, costOfNode+len(path)+len(e.open)+len(n.Value)); err != nil {
		return err
	}
	if len(e.out) > maxJSON {
		return e.fail(n, path, "use fewer aliases", "the document unfolds to more than %d MiB", maxJSON>>20)
	}
	if n.Kind == yaml.ScalarNode {
		return e.scalar(n, path)
	}
	if slices.Contains(e.open, n) {
		return e.fail(n, path, "break the circle of anchors and aliases", "contains itself")
	}
	e.open = append(e.open, n)
	defer func() { e.open = e.open[:len(e.open)-1] }()
	if n.Kind == yaml.SequenceNode {
		return e.list(n, path)
	}
	fields, err := e.fields(n, path)
	if err != nil {
		return err
	}
	return e.entries(fields, path)
}

func (e *encoder) list(n *yaml.Node, path string) *problem.Diagnostic {
	e.out = append(e.out, '[')
	for i, item := range n.Content {
		if i > 0 {
			e.out = append(e.out, ',')
		}
		e.newline()
		p := fmt.Sprintf("%s[%d]", path, i)
		e.at(p, item)
		if err := e.value(item, p); err != nil {
			return err
		}
	}
	e.out = append(e.out, ']')
	return nil
}

func (e *encoder) entries(fields []entry, path string) *problem.Diagnostic {
	e.out = append(e.out, '{')
	for i, f := range fields {
		if i > 0 {
			e.out = append(e.out, ',')
		}
		e.newline()
		p := join(path, f.key)
		e.at(p, f.at)
		e.out = append(append(e.out, quote(f.key)...), ':', ' ')
		start, line := len(e.out), e.line
		if err := e.value(f.value, p); err != nil {
			return err
		}
		if p == "spec" && resolve(f.value).ShortTag() != "!!null" {
			e.specStart, e.specEnd, e.specLine = start, len(e.out), line
		}
	}
	e.out = append(e.out, '}')
	return nil
}

func (e *encoder) scalar(n *yaml.Node, path string) *problem.Diagnostic {
	switch n.ShortTag() {
	case "!!null":
		e.out = append(e.out, "null"...)
	case "!!bool", "!!int", "!!float":
		b, err := number(n)
		if err != nil {
			return e.fail(n, path, "write a number or true or false; quote a text", "%q: %v", n.Value, err)
		}
		e.out = append(e.out, b...)
	default: // texts, and values that are texts in protobuf's JSON: times, base64
		e.out = append(e.out, quote(n.Value)...)
	}
	return nil
}

// number returns a number or a truth value in JSON. It keeps the form of the file,
// with all its digits, if JSON knows it.
func number(n *yaml.Node) ([]byte, error) {
	if strings.IndexByte("-0123456789tf", (n.Value + " ")[0]) >= 0 && json.Valid([]byte(n.Value)) {
		return []byte(n.Value), nil
	}
	var v any
	if err := n.Decode(&v); err != nil {
		return nil, err
	}
	if f, ok := v.(float64); ok {
		switch {
		case math.IsNaN(f):
			return []byte(`"NaN"`), nil
		case math.IsInf(f, 1):
			return []byte(`"Infinity"`), nil
		case math.IsInf(f, -1):
			return []byte(`"-Infinity"`), nil
		}
	}
	return json.Marshal(v)
}

func quote(s string) []byte {
	b, _ := json.Marshal(s) // it cannot fail for a string
	return b
}

// join returns the path of a key below path. It quotes a key that is not a plain name.
func join(path, key string) string {
	switch {
	case key == "" || strings.ContainsAny(key, `.[]" `):
		return path + "[" + strconv.Quote(key) + "]"
	case path == "":
		return key
	}
	return path + "." + key
}
