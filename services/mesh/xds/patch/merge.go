package patch

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/anytype"
	"meshlog.dev/services/mesh/index"
)

// merge merges the value of a patch into a message: fields of messages one by one, also of
// those in an Any of the same type, elements of lists behind those that are there, or in
// their place with MERGE_AND_REPLACE_LIST (EF-2).
func merge(into proto.Message, p *index.Patch) {
	merger{p.Operation == networking.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST}.message(into.ProtoReflect(), p.Value.ProtoReflect())
}

type merger struct{ replaceLists bool }

func (m merger) message(into, from protoreflect.Message) {
	from.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsList():
			if m.replaceLists {
				into.Clear(fd)
			}
			list := into.Mutable(fd).List()
			for i := range v.List().Len() {
				list.Append(copied(fd, v.List().Get(i)))
			}
		case fd.IsMap():
			m.entries(into.Mutable(fd).Map(), v.Map(), fd.MapValue())
		case fd.Message() != nil && into.Has(fd) && !isValue(fd.Message()):
			m.submessage(into.Mutable(fd).Message(), v.Message())
		default:
			into.Set(fd, copied(fd, v))
		}
		return true
	})
}

func (m merger) entries(into, from protoreflect.Map, fd protoreflect.FieldDescriptor) {
	from.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		if fd.Message() != nil && into.Has(k) && !isValue(fd.Message()) {
			m.submessage(into.Mutable(k).Message(), v.Message())
		} else {
			into.Set(k, copied(fd, v))
		}
		return true
	})
}

func (m merger) submessage(into, from protoreflect.Message) {
	a, ok := into.Interface().(*anypb.Any)
	if !ok {
		m.message(into, from)
		return
	}
	b := from.Interface().(*anypb.Any)
	inner, err := anytype.Unmarshal(a)
	other, err2 := anytype.Unmarshal(b)
	if a.GetTypeUrl() != b.GetTypeUrl() || err != nil || err2 != nil {
		a.TypeUrl, a.Value = b.GetTypeUrl(), b.GetValue()
		return
	}
	m.message(inner.ProtoReflect(), other.ProtoReflect())
	a.Value = marshal(inner)
}

// isValue reports whether a message is a value that is replaced as a whole: a duration of a
// second and one of a nanosecond are not one of both.
func isValue(d protoreflect.MessageDescriptor) bool {
	return d.FullName().Parent() == "google.protobuf" && d.Name() != "Any" && d.Name() != "Struct"
}

// copied returns a copy of a single value.
func copied(fd protoreflect.FieldDescriptor, v protoreflect.Value) protoreflect.Value {
	if fd.Message() == nil || fd.IsMap() {
		return v
	}
	return protoreflect.ValueOfMessage(proto.Clone(v.Message().Interface()).ProtoReflect())
}

func marshal(m proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true, AllowPartial: true}.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("marshal %T: %v", m, err)) // its texts were UTF-8 when it was read
	}
	return b
}

// value returns a copy of the value of a patch.
func value[T proto.Message](p *index.Patch) T { return proto.Clone(p.Value).(T) }

func merges(p *index.Patch) bool {
	return p.Operation == networking.EnvoyFilter_Patch_MERGE || p.Operation == networking.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST
}
