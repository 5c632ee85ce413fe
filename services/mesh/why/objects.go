package why

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
)

// object is one that may matter to a resource, with the ways to change it.
type object struct {
	key    ident.Key
	leaves []leaf
	own    map[string]bool // paths that the object has itself; nil: all
	fields proto.Message
	encode func(proto.Message) (ident.Value, error)
	prefix string
}

// newObject reads the object of a key. If this build cannot vary its fields, it has none.
func newObject(k ident.Key, v ident.Value) *object {
	o := &object{key: k}
	m, prefix, encode, err := fieldsOf(k, v)
	if err != nil {
		return o
	}
	o.fields, o.encode, o.prefix, o.leaves = m, encode, prefix, leavesOf(m, prefix)
	return o
}

// without returns the change that removes the object.
func (o *object) without() world.RowChange { return world.RowChange{Row: o.key.Row(), Key: o.key} }

// varied returns the change that sets some leaves to other values, and the value that the
// object has then.
func (o *object) varied(leaves []leaf, way int) (row world.RowChange, v ident.Value, err error) {
	m := proto.Clone(o.fields)
	for _, l := range slices.Backward(leaves) { // a removed element moves those behind it
		change(m.ProtoReflect(), l.steps, min(way, l.ways-1))
	}
	if v, err = o.encode(m); err != nil { // JSON without a value
		return row, v, fmt.Errorf("%w: %w", errUnread, err)
	}
	return world.RowChange{Row: o.key.Row(), Key: o.key, Value: world.MarshalValue(v)}, v, nil
}

func isValid(k ident.Key, v ident.Value) bool {
	kd, ok := kind.ByName(k.Kind)
	if !ok {
		return false
	}
	m, err := kd.Decode(v.Type, v.Bytes)
	return err == nil && !slices.ContainsFunc(kd.Validate(k.Namespace, m), func(d problem.Diagnostic) bool { return d.Severity == problem.Error })
}

// atOnce is how many objects are removed at once to find out which inputs they are.
const atOnce = 64

// readers returns the objects whose change would change one of some inputs: those whose
// inputs the parts of the resource have read, and apart from them those that only the search
// for the parts may have read.
func (s *scene) readers(parts, search []index.Input) (of, others []*object, err error) {
	for _, k := range kind.All() {
		for some := range slices.Chunk(slices.Collect(s.world.Objects(k.Name)), atOnce) {
			inputs, err := s.read(removed(some))
			switch {
			case err != nil:
				return nil, nil, err
			case !overlap(inputs, parts) && overlap(inputs, search):
				for _, o := range some {
					others = append(others, newObject(o.Key, o.Value))
				}
				continue
			case !overlap(inputs, parts):
				continue
			}
			for _, o := range some {
				inputs, err := s.read(removed([]world.Object{o}))
				switch {
				case err != nil:
					return nil, nil, err
				case overlap(inputs, parts):
					of = append(of, newObject(o.Key, o.Value))
				case overlap(inputs, search):
					others = append(others, newObject(o.Key, o.Value))
				}
			}
		}
	}
	return of, others, nil
}

// removed returns the changes that remove objects.
func removed(objects []world.Object) []world.RowChange {
	rows := make([]world.RowChange, len(objects))
	for i, o := range objects {
		rows[i] = world.RowChange{Row: o.Key.Row(), Key: o.Key}
	}
	return rows
}

// bisect returns the items that matter alone or in a small group. Matters reports
// whether the change of all of some items makes a difference.
func bisect[T any](items []T, matters func([]T) (bool, error)) ([]T, error) {
	if len(items) == 0 {
		return nil, nil
	}
	yes, err := matters(items)
	if err != nil || !yes {
		return nil, err
	}
	if len(items) == 1 {
		return items, nil
	}
	half := len(items) / 2
	a, err := bisect(items[:half], matters)
	if err != nil {
		return nil, err
	}
	b, err := bisect(items[half:], matters)
	return slices.Concat(a, b), err
}
