package why

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/anytype"
	"meshlog.dev/services/mesh/xds"
)

// node is a value of a resource's JSON, as `diff --proxy` and `proxy-config` print it.
// Nodes are immutable: those of pieces are shared by all resources that have the piece.
type node struct {
	text   string // of a scalar: its JSON
	names  []string
	fields []*node // of an object, by names, which are sorted
	list   []*node
	isList bool
	leaves int // scalars and empty objects in it
	hash   uint64
}

// documents makes nodes of resources. It keeps those of pieces.
type documents map[*xds.Encoded]*node

// of returns the node of a resource; nil: the resource is nil.
func (d documents) of(t ident.ResourceType, r *xds.Resource) (*node, error) {
	if r == nil {
		return nil, nil
	}
	var pieces, unknown []*xds.Encoded
	for e := range r.Pieces.All() {
		pieces = append(pieces, e)
		if d[e] == nil {
			unknown = append(unknown, e)
		}
	}
	decoded, err := decodeAll(t, unknown)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", t.Message(), r.Name, err)
	}
	for i, e := range unknown {
		d[e] = decoded[i]
	}
	parts := make([]*node, len(pieces))
	for i, e := range pieces {
		parts[i] = d[e]
	}
	return merge(parts), nil
}

// decodeAll decodes pieces with all cores: the routes of a large mesh are in thousands of them.
func decodeAll(t ident.ResourceType, pieces []*xds.Encoded) ([]*node, error) {
	nodes, cores := make([]*node, len(pieces)), runtime.GOMAXPROCS(0)
	errs := make([]error, cores)
	var all sync.WaitGroup
	for core := range min(cores, len(pieces)) {
		all.Go(func() {
			for i := core; i < len(pieces) && errs[core] == nil; i += cores {
				nodes[i], errs[core] = decode(t, pieces[i].Value)
			}
		})
	}
	all.Wait()
	return nodes, errors.Join(errs...)
}

func decode(t ident.ResourceType, value []byte) (*node, error) {
	of, err := protoregistry.GlobalTypes.FindMessageByURL(t.URL())
	if err != nil {
		return nil, err
	}
	m := of.New().Interface()
	if err := proto.Unmarshal(value, m); err != nil {
		return nil, err
	}
	b, err := protojson.MarshalOptions{UseProtoNames: true, Resolver: anytype.Types}.Marshal(m)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	return nodeOf(v), nil
}

func nodeOf(v any) *node {
	n := &node{}
	switch v := v.(type) {
	case map[string]any:
		for name := range v {
			n.names = append(n.names, name)
		}
		slices.Sort(n.names)
		for _, name := range n.names {
			n.fields = append(n.fields, nodeOf(v[name]))
		}
	case []any:
		n.isList = true
		for _, e := range v {
			n.list = append(n.list, nodeOf(e))
		}
	default:
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		_ = e.Encode(v) // what was read from JSON can be written
		n.text = strings.TrimSpace(b.String())
	}
	return n.seal()
}

// seal computes what depends on the parts of n.
func (n *node) seal() *node {
	h := fnv.New64a()
	fmt.Fprintf(h, "%t %q", n.isList, n.text)
	for i, f := range n.fields {
		fmt.Fprintf(h, " %q:%x", n.names[i], f.hash)
		n.leaves += f.leaves
	}
	for _, e := range n.list {
		fmt.Fprintf(h, ",%x", e.hash)
		n.leaves += e.leaves
	}
	n.leaves, n.hash = max(n.leaves, 1), h.Sum64()
	return n
}

// merge returns the node of a message whose bytes are those of parts, in a row: lists
// are joined, of other fields the last counts.
func merge(parts []*node) *node {
	if len(parts) == 1 {
		return parts[0]
	}
	all := &node{}
	own := map[*node]bool{} // lists that no piece has
	for _, p := range parts {
		for i, name := range p.names {
			at, found := slices.BinarySearch(all.names, name)
			switch f := p.fields[i]; {
			case !found:
				all.names, all.fields = slices.Insert(all.names, at, name), slices.Insert(all.fields, at, f)
			case f.isList && own[all.fields[at]]:
				all.fields[at].list = append(all.fields[at].list, f.list...)
			case f.isList:
				all.fields[at] = &node{isList: true, list: slices.Concat(all.fields[at].list, f.list)}
				own[all.fields[at]] = true
			default:
				all.fields[at] = f
			}
		}
	}
	for _, f := range all.fields {
		if f.isList && f.leaves == 0 {
			f.seal()
		}
	}
	return all.seal()
}

func (n *node) field(name string) *node {
	if n == nil {
		return nil
	}
	if i, ok := slices.BinarySearch(n.names, name); ok {
		return n.fields[i]
	}
	return nil
}

// name is what tells an element of a list from the others; "": nothing does.
func (n *node) name() string {
	if f := n.field("name"); f != nil {
		return f.text
	}
	return ""
}

// String returns n as JSON.
func (n *node) String() string {
	switch {
	case n == nil:
		return ""
	case n.isList:
		all := make([]string, len(n.list))
		for i, e := range n.list {
			all[i] = e.String()
		}
		return "[" + strings.Join(all, ",") + "]"
	case n.text != "":
		return n.text
	}
	all := make([]string, len(n.fields))
	for i, f := range n.fields {
		all[i] = strconv.Quote(n.names[i]) + ":" + f.String()
	}
	return "{" + strings.Join(all, ",") + "}"
}

// join returns the path of a field.
func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// within reports whether a path is that of a field or of something in it.
func within(path, field string) bool {
	rest, ok := strings.CutPrefix(path, field)
	return ok && (field == "" || rest == "" || rest[0] == '.' || rest[0] == '[')
}

// find returns the node at a path, and the path with indexes in place of names.
// An element of a list is named by its index or by its name.
func (n *node) find(path string) (*node, string, error) {
	at, rest := "", path
	for rest != "" {
		name := ""
		if rest[0] == '[' {
			end := closing(rest)
			if end < 0 {
				return nil, "", fmt.Errorf("field %s: %w: a bracket is not closed", path, ErrNoField)
			}
			name, rest = rest[1:end], rest[end+1:]
			i, err := n.element(name)
			if err != nil {
				return nil, "", fmt.Errorf("field %s: %w: %s: %w", path, ErrNoField, orResource(at), err)
			}
			n, at = n.list[i], fmt.Sprintf("%s[%d]", at, i)
		} else {
			f := n.prefix(rest)
			if f == "" {
				return nil, "", fmt.Errorf("field %s: %w: %s has %s", path, ErrNoField, orResource(at), cmp.Or(strings.Join(n.names, ", "), "no fields"))
			}
			n, at, rest = n.field(f), join(at, f), rest[len(f):]
		}
		rest = strings.TrimPrefix(rest, ".")
	}
	return n, at, nil
}

func orResource(path string) string {
	if path == "" {
		return "the resource"
	}
	return path
}

// closing returns the index of the bracket that closes the first; -1: there is none.
func closing(s string) int {
	depth := 0
	for i, c := range s {
		switch c {
		case '[':
			depth++
		case ']':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return -1
}

// prefix returns the longest field with which a path begins: names of maps may have dots.
func (n *node) prefix(path string) (longest string) {
	if n == nil {
		return ""
	}
	for _, name := range n.names {
		if len(name) > len(longest) && within(path, name) {
			longest = name
		}
	}
	return longest
}

// element returns the index of an element of a list.
func (n *node) element(name string) (int, error) {
	if !n.isList {
		return 0, fmt.Errorf("it is no list")
	}
	if i, err := strconv.Atoi(name); err == nil {
		if i >= 0 && i < len(n.list) {
			return i, nil
		}
		return 0, fmt.Errorf("it has %d elements", len(n.list))
	}
	quoted := strconv.Quote(strings.Trim(name, `"`))
	if i := slices.IndexFunc(n.list, func(e *node) bool { return e.name() == quoted }); i >= 0 {
		return i, nil
	}
	return 0, fmt.Errorf("it has no element named %s", quoted)
}

// leavesOf calls each for the scalars and empty values in n.
func (n *node) leavesOf(path string, each func(path string, leaf *node)) {
	if n == nil {
		return
	}
	if len(n.fields)+len(n.list) == 0 {
		each(path, n)
		return
	}
	for i, f := range n.fields {
		f.leavesOf(join(path, n.names[i]), each)
	}
	for i, e := range n.list {
		e.leavesOf(fmt.Sprintf("%s[%d]", path, i), each)
	}
}
