package command

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
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
	m, err := Message(t, r)
	if err != nil {
		return nil, nil, err
	}
	b, err := printMessage(m)
	if err != nil {
		return nil, nil, resourceError(t, r, err)
	}
	return m, b, nil
}

// Message decodes a resource.
func Message(t ident.ResourceType, r *xds.Resource) (proto.Message, error) {
	return decode(t, r, r.Value())
}

func decode(t ident.ResourceType, r *xds.Resource, b []byte) (proto.Message, error) {
	of, err := protoregistry.GlobalTypes.FindMessageByURL(t.URL())
	if err != nil {
		return nil, err
	}
	m := of.New().Interface()
	if err := proto.Unmarshal(b, m); err != nil {
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

// CompareResources returns the change from before to after, and of their messages what may
// differ: equal elements at both ends of a list are left out of both. nil: there is no
// message, or this build cannot read it.
func CompareResources(t ident.ResourceType, before, after *xds.Resource) (past.ObjectChange, [2]proto.Message) {
	resources := [2]*xds.Resource{before, after}
	var encoded [2][]byte
	var skipped past.Skipped
	for i, r := range resources {
		if r != nil {
			encoded[i] = r.Value()
		}
	}
	if of, err := protoregistry.GlobalTypes.FindMessageByURL(t.URL()); err == nil && before != nil && after != nil {
		encoded, skipped = differing(of.Descriptor(), encoded)
	}
	var messages [2]proto.Message
	var docs [2]json.RawMessage
	var errs [2]error
	for i, r := range resources {
		if r == nil {
			continue
		}
		if messages[i], errs[i] = decode(t, r, encoded[i]); errs[i] == nil {
			if docs[i], errs[i] = printMessage(messages[i]); errs[i] != nil {
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

// record is a field of an encoded message, with its tag.
type record struct {
	number protowire.Number
	bytes  []byte
}

// records splits an encoded message into its fields; nil: it is none.
func records(b []byte) (all []record) {
	for len(b) > 0 {
		number, _, n := protowire.ConsumeField(b)
		if n < 0 {
			return nil
		}
		all = append(all, record{number, b[:n]})
		b = b[n:]
	}
	return all
}

// differing returns two encoded messages without the equal elements at both ends of their
// lists of messages. The routes of a large mesh have thousands of these.
func differing(of protoreflect.MessageDescriptor, all [2][]byte) (rest [2][]byte, skipped past.Skipped) {
	sides := [2][]record{records(all[0]), records(all[1])}
	skipped = past.Skipped{}
	for i := range of.Fields().Len() {
		f := of.Fields().Get(i)
		if !f.IsList() || f.Message() == nil {
			continue
		}
		was, is := ofField(sides[0], f.Number()), ofField(sides[1], f.Number())
		first, endWas, endIs := 0, len(was), len(is)
		for first < min(endWas, endIs) && bytes.Equal(was[first].bytes, is[first].bytes) {
			first++
		}
		for min(endWas, endIs) > first && bytes.Equal(was[endWas-1].bytes, is[endIs-1].bytes) {
			endWas, endIs = endWas-1, endIs-1
		}
		if none := endWas == first || endIs == first; none && first > 0 { // which would not be printed
			first--
		} else if none && endWas < len(was) {
			endWas, endIs = endWas+1, endIs+1
		}
		skipped[f.TextName()] = first
		sides[0] = cut(sides[0], f.Number(), first, endWas)
		sides[1] = cut(sides[1], f.Number(), first, endIs)
	}
	for i, side := range sides {
		for _, r := range side {
			rest[i] = append(rest[i], r.bytes...)
		}
	}
	return rest, skipped
}

// ofField returns the records of a field.
func ofField(all []record, number protowire.Number) (some []record) {
	for _, r := range all {
		if r.number == number {
			some = append(some, r)
		}
	}
	return some
}

// cut returns the records without those of a list that are not of the elements from first to
// end.
func cut(all []record, list protowire.Number, first, end int) []record {
	n := -1
	return slices.DeleteFunc(all, func(r record) bool {
		if r.number != list {
			return false
		}
		n++
		return n < first || n >= end
	})
}
