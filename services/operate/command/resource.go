package command

import (
	"cmp"
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/anytype"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/operate/past"
)

// Resource decodes a resource, and prints it as Envoy's config dump does.
func Resource(t ident.ResourceType, r *xds.Resource) (proto.Message, json.RawMessage, error) {
	m, err := decode(t, r)
	if err != nil {
		return nil, nil, err
	}
	b, err := printMessage(m)
	if err != nil {
		return nil, nil, resourceError(t, r, err)
	}
	return m, b, nil
}

func decode(t ident.ResourceType, r *xds.Resource) (proto.Message, error) {
	of, err := protoregistry.GlobalTypes.FindMessageByURL(t.URL())
	if err != nil {
		return nil, err
	}
	m := of.New().Interface()
	if err := proto.Unmarshal(r.Value(), m); err != nil {
		return nil, resourceError(t, r, err)
	}
	return m, nil
}

func printMessage(m proto.Message) (json.RawMessage, error) {
	return protojson.MarshalOptions{UseProtoNames: true, Resolver: anytype.Types}.Marshal(m)
}

func resourceError(t ident.ResourceType, r *xds.Resource, err error) error {
	return fmt.Errorf("%s %s: %w", t.Message(), r.Name, err)
}

// CompareResources returns the change from before to after, and their messages; nil: there
// is none, or this build cannot read it.
func CompareResources(t ident.ResourceType, before, after *xds.Resource) (past.ObjectChange, [2]proto.Message) {
	resources := [2]*xds.Resource{before, after}
	var messages [2]proto.Message
	var docs [2]json.RawMessage
	var errs [2]error
	for i, r := range resources {
		if r != nil {
			messages[i], errs[i] = decode(t, r)
		}
	}
	rest, skipped := messages, past.Skipped(nil)
	if messages[0] != nil && messages[1] != nil {
		rest, skipped = differing(messages)
	}
	for i, r := range resources {
		if r == nil {
			continue
		}
		if errs[i] == nil {
			if docs[i], errs[i] = printMessage(rest[i]); errs[i] != nil {
				errs[i] = resourceError(t, r, errs[i])
			}
		}
		if errs[i] != nil {
			messages[i], docs[i] = nil, json.RawMessage("null")
		}
	}
	c := past.ObjectChange{Object: t.Message() + " " + cmp.Or(before, after).Name}
	c.CompareRest("", docs[0], docs[1], skipped, cmp.Or(errs[0], errs[1]))
	return c, messages
}

// differing returns two messages without the elements at the beginning and the end of their
// lists that are equal, of which the routes of a large mesh have thousands.
func differing(all [2]proto.Message) (rest [2]proto.Message, skipped past.Skipped) {
	skipped = past.Skipped{}
	a, b := all[0].ProtoReflect(), all[1].ProtoReflect()
	x, y := a.New(), b.New()
	for _, side := range []struct{ from, to protoreflect.Message }{{a, x}, {b, y}} {
		side.from.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			side.to.Set(f, v)
			return true
		})
		side.to.SetUnknown(side.from.GetUnknown())
	}
	for f := range fieldsOf(a) {
		if !f.IsList() || f.Message() == nil || !b.Has(f) {
			continue
		}
		was, is := a.Get(f).List(), b.Get(f).List()
		equal := func(i, j int) bool {
			return proto.Equal(was.Get(i).Message().Interface(), is.Get(j).Message().Interface())
		}
		first, endWas, endIs := 0, was.Len(), is.Len()
		for first < min(endWas, endIs) && equal(first, first) {
			first++
		}
		for min(endWas, endIs) > first && equal(endWas-1, endIs-1) {
			endWas, endIs = endWas-1, endIs-1
		}
		if none := endWas == first || endIs == first; none && first > 0 { // which would not be printed
			first--
		} else if none && endWas < was.Len() {
			endWas, endIs = endWas+1, endIs+1
		}
		skipped[f.TextName()] = first
		cut(x, f, was, first, endWas)
		cut(y, f, is, first, endIs)
	}
	return [2]proto.Message{x.Interface(), y.Interface()}, skipped
}

// cut sets a list to some elements of another one.
func cut(m protoreflect.Message, f protoreflect.FieldDescriptor, from protoreflect.List, first, end int) {
	list := m.NewField(f)
	for i := first; i < end; i++ {
		list.List().Append(from.Get(i))
	}
	m.Set(f, list)
}

// fieldsOf yields the fields that a message has.
func fieldsOf(m protoreflect.Message) func(func(protoreflect.FieldDescriptor) bool) {
	return func(yield func(protoreflect.FieldDescriptor) bool) {
		m.Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool { return yield(f) })
	}
}
