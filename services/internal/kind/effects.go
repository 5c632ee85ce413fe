package kind

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// NoEffect is a field that is accepted and changes nothing in this build.
type NoEffect struct {
	Kind string
	// Field is its path from the spec, without indices, as in protobuf's JSON;
	// "field=VALUE" is one value of an enumeration or a text.
	Field string
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
	fields  map[protoreflect.Name]*effectTree
	instead string            // of the field itself
	values  map[string]string // of single values
}

func newEffectTree(rows []NoEffect) map[string]*effectTree {
	kinds := map[string]*effectTree{}
	for _, row := range rows {
		at, ok := kinds[row.Kind]
		if !ok {
			at = &effectTree{}
			kinds[row.Kind] = at
		}
		field, value, one := strings.Cut(row.Field, "=")
		for _, name := range strings.Split(field, ".") {
			at = at.child(protoreflect.Name(name))
		}
		if !one {
			at.instead = row.Instead
			continue
		}
		if at.values == nil {
			at.values = map[string]string{}
		}
		at.values[value] = row.Instead
	}
	return kinds
}

func (t *effectTree) child(name protoreflect.Name) *effectTree {
	if t.fields == nil {
		t.fields = map[protoreflect.Name]*effectTree{}
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
		next := t.fields[protoreflect.Name(fd.JSONName())]
		if next == nil {
			return true
		}
		field := at.field(fd.JSONName())
		switch instead, one := next.values[text(fd, v)]; {
		case next.instead != "":
			c.warn(field, "do not rely on it", "has no effect yet: %s", next.instead)
		case one:
			c.warn(field, "do not rely on it", "%s has no effect yet: %s", text(fd, v), instead)
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
