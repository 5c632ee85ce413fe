package validate

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"meshlog.dev/services/mesh/problem"
)

// NoEffect is a field that is accepted and changes nothing in this build.
type NoEffect struct {
	Kind string
	// Field is its path from the spec, without indices and keys, as in
	// protobuf's JSON;
	// "field=VALUE" is one value of an enumeration or a text.
	Field string
	// As is how documents call the last part of Field, where they call it
	// otherwise.
	As string
	// Instead is what happens.
	Instead string
}

// NoEffects is the one table of what is accepted and has no effect yet, in the
// order of kinds and fields.
func NoEffects() []NoEffect { return slices.Clone(noEffects) }

var ineffective = newEffectTree(noEffects)

// effectTree leads to the fields without effect, so that what has one is passed
// over at the first step.
type effectTree struct {
	fields map[string]*effectTree
	row    *NoEffect            // of the field itself; nil: it has an effect
	values map[string]*NoEffect // of single values
}

func newEffectTree(rows []NoEffect) map[string]*effectTree {
	kinds := map[string]*effectTree{}
	for i := range rows {
		row := &rows[i]
		at, ok := kinds[row.Kind]
		if !ok {
			at = &effectTree{}
			kinds[row.Kind] = at
		}
		field, value, one := strings.Cut(row.Field, "=")
		for _, name := range strings.Split(field, ".") {
			at = at.child(name)
		}
		if !one {
			at.row = row
			continue
		}
		if at.values == nil {
			at.values = map[string]*NoEffect{}
		}
		at.values[value] = row
	}
	return kinds
}

func (t *effectTree) child(name string) *effectTree {
	if t.fields == nil {
		t.fields = map[string]*effectTree{}
	}
	next, ok := t.fields[name]
	if !ok {
		next = &effectTree{}
		t.fields[name] = next
	}
	return next
}

// noEffect warns of the fields of an object that are set to no effect.
func (c *checker) noEffect(kind string, m proto.Message) {
	if t := ineffective[kind]; t != nil {
		c.ineffective(root, t, m.ProtoReflect())
	}
}

func (c *checker) ineffective(at *fieldPath, t *effectTree, m protoreflect.Message) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		next := t.fields[fd.JSONName()]
		if next == nil {
			return true
		}
		field := at.field(fd.JSONName())
		switch one := next.values[text(fd, v)]; {
		case next.row != nil:
			if next.row.As != "" {
				field = at.field(next.row.As)
			}
			c.without(field, "has no effect yet: "+next.row.Instead)
		case one != nil:
			c.without(field, text(fd, v)+" has no effect yet: "+one.Instead)
		case fd.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				c.ineffective(field.entry(k.String()), next, v.Message())
				return true
			})
		case fd.IsList():
			for i := range v.List().Len() {
				c.ineffective(field.item(i), next, v.List().Get(i).Message())
			}
		case fd.Message() != nil:
			c.ineffective(field, next, v.Message())
		}
		return true
	})
}

func (c *checker) without(field *fieldPath, reason string) {
	c.problems = append(c.problems, problem.Problem{
		Field: field.String(), Reason: reason, Advice: "do not rely on it", Warning: true, NoEffect: true,
	})
}

// text is a value as the table names it.
func text(fd protoreflect.FieldDescriptor, v protoreflect.Value) string {
	switch {
	case fd.IsList() || fd.IsMap():
		return ""
	case fd.Enum() != nil:
		if e := fd.Enum().Values().ByNumber(v.Enum()); e != nil {
			return string(e.Name())
		}
		return fmt.Sprint(v.Enum())
	case fd.Kind() == protoreflect.StringKind:
		return strings.ToUpper(v.String())
	}
	return ""
}
