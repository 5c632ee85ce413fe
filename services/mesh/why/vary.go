package why

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/anytype"
	"meshlog.dev/services/mesh/kind"
)

// leaf is a field of an object that has a value: a scalar, an element of a list of
// scalars, an entry of a map, or a message without fields.
type leaf struct {
	path  string // as `history` and `show` print it
	steps []step
	ways  int // in which change can set it to something else
	text  string
}

// step leads from a message or a list to a part of it.
type step struct {
	field protoreflect.FieldDescriptor // of a message
	index int                          // of a list
	key   protoreflect.MapKey          // of a map
	isAny bool                         // the message in an Any
}

// cleared is the way that removes a leaf.
const cleared = -1

// fieldsOf decodes the payload of an object into the message whose fields leaves
// name, and a function that encodes it again.
func fieldsOf(k ident.Key, v ident.Value) (m proto.Message, prefix string, encode func(proto.Message) (ident.Value, error), err error) {
	m, err = (&anypb.Any{TypeUrl: v.Type, Value: v.Bytes}).UnmarshalNew()
	if err != nil {
		return nil, "", nil, err
	}
	encode = func(m proto.Message) (ident.Value, error) {
		b, err := proto.MarshalOptions{Deterministic: true, AllowPartial: true}.Marshal(m)
		return ident.Value{Type: v.Type, Bytes: b, Created: v.Created}, err
	}
	if kd, ok := kind.ByName(k.Kind); ok && kd.Form == kind.Spec {
		prefix = "spec"
	}
	whole, ok := m.(*registryv1.Object)
	if !ok {
		return m, prefix, encode, nil
	}
	s := new(structpb.Struct)
	if err := s.UnmarshalJSON(whole.GetJson()); err != nil {
		return nil, "", nil, err
	}
	plain := encode
	return s, prefix, func(m proto.Message) (ident.Value, error) {
		o := proto.CloneOf(whole)
		b, err := m.(*structpb.Struct).MarshalJSON()
		if o.Json = b; err != nil {
			return ident.Value{}, err
		}
		return plain(o)
	}, nil
}

// leavesIn returns the leaves of a message.
func leavesOf(m proto.Message, prefix string) []leaf {
	var all []leaf
	message(m.ProtoReflect(), prefix, nil, &all)
	return all
}

func with(steps []step, s step) []step { return append(slices.Clip(steps), s) }

// message adds the leaves of a message.
func message(m protoreflect.Message, path string, steps []step, all *[]leaf) {
	if a, ok := m.Interface().(*anypb.Any); ok {
		if inner, err := anytype.Unmarshal(a); err == nil {
			message(inner.ProtoReflect(), path, with(steps, step{isAny: true}), all)
			return
		}
	}
	before := len(*all)
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		if fd := fields.Get(i); m.Has(fd) {
			at := path
			if !isValue(m.Descriptor()) {
				at = join(path, fd.JSONName())
			}
			field(fd, m.Get(fd), at, with(steps, step{field: fd}), all)
		}
	}
	if len(*all) == before && len(steps) > 0 {
		*all = append(*all, leaf{path: path, steps: steps})
	}
	if !isValue(m.Descriptor()) || isFree(m.Descriptor()) {
		return
	}
	if b, err := protojson.Marshal(m.Interface()); err == nil {
		for i := before; i < len(*all); i++ {
			(*all)[i].text = string(b)
		}
	}
}

// isValue reports whether JSON writes a message as the value of its only field:
// wrappers, durations, and free JSON.
func isValue(d protoreflect.MessageDescriptor) bool {
	return d.FullName().Parent() == "google.protobuf" && d.Name() != "Any"
}

// isFree reports whether a message is free JSON, which has fields of its own.
func isFree(d protoreflect.MessageDescriptor) bool {
	return d.Name() == "Struct" || d.Name() == "Value" || d.Name() == "ListValue"
}

func field(fd protoreflect.FieldDescriptor, v protoreflect.Value, path string, steps []step, all *[]leaf) {
	switch {
	case fd.IsMap():
		var keys []protoreflect.MapKey
		v.Map().Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool { keys = append(keys, k); return true })
		slices.SortFunc(keys, func(a, b protoreflect.MapKey) int { return strings.Compare(a.String(), b.String()) })
		for _, k := range keys {
			single(fd.MapValue(), v.Map().Get(k), join(path, k.String()), with(steps, step{key: k}), all)
		}
	case fd.IsList():
		for i := range v.List().Len() {
			single(fd, v.List().Get(i), fmt.Sprintf("%s[%d]", path, i), with(steps, step{index: i}), all)
		}
	default:
		single(fd, v, path, steps, all)
	}
}

func single(fd protoreflect.FieldDescriptor, v protoreflect.Value, path string, steps []step, all *[]leaf) {
	if fd.Message() != nil {
		message(v.Message(), path, steps, all)
		return
	}
	ways := 1
	if fd.Enum() != nil {
		ways = fd.Enum().Values().Len() - 1
	}
	*all = append(*all, leaf{path: path, steps: steps, ways: ways, text: textOf(fd, v)})
}

// textOf returns the JSON of a scalar.
func textOf(fd protoreflect.FieldDescriptor, v protoreflect.Value) string {
	switch fd.Kind() {
	case protoreflect.EnumKind:
		if d := fd.Enum().Values().ByNumber(v.Enum()); d != nil {
			return string(d.Name())
		}
	case protoreflect.BytesKind:
		return fmt.Sprintf("%d bytes", len(v.Bytes()))
	case protoreflect.StringKind:
		return strconv.Quote(v.String())
	}
	return fmt.Sprint(v.Interface())
}

func typeURL(m proto.Message) string {
	return "type.googleapis.com/" + string(m.ProtoReflect().Descriptor().FullName())
}

// pathOf returns the path to which steps lead.
func pathOf(prefix string, steps []step) string {
	path := prefix
	for i, s := range steps {
		switch {
		case s.isAny:
		case s.field != nil:
			if !isValue(s.field.ContainingMessage()) {
				path = join(path, s.field.JSONName())
			}
		case i > 0 && steps[i-1].field.IsMap():
			path = join(path, s.key.String())
		default:
			path = fmt.Sprintf("%s[%d]", path, s.index)
		}
	}
	return path
}

// change sets a leaf in m to another value, or clears it.
func change(m protoreflect.Message, steps []step, way int) {
	s := steps[0]
	if s.isAny {
		a := m.Interface().(*anypb.Any)
		inner, err := anytype.Unmarshal(a)
		if err != nil {
			return
		}
		if len(steps) > 1 {
			change(inner.ProtoReflect(), steps[1:], way)
		}
		if packed, err := anypb.New(inner); err == nil {
			a.Value = packed.GetValue()
		}
		return
	}
	fd, rest := s.field, steps[1:]
	switch {
	case fd.IsMap():
		entries, key := m.Mutable(fd).Map(), rest[0].key
		switch {
		case len(rest) > 1:
			change(entries.Mutable(key).Message(), rest[1:], way)
		case way == cleared || fd.MapValue().Message() != nil:
			entries.Clear(key)
		default:
			entries.Set(key, other(fd.MapValue(), entries.Get(key), way))
		}
	case fd.IsList():
		list, i := m.Mutable(fd).List(), rest[0].index
		switch {
		case i >= list.Len():
		case len(rest) > 1:
			change(list.Get(i).Message(), rest[1:], way)
		case way == cleared || fd.Message() != nil:
			for ; i < list.Len()-1; i++ {
				list.Set(i, list.Get(i+1))
			}
			list.Truncate(list.Len() - 1)
		default:
			list.Set(i, other(fd, list.Get(i), way))
		}
	case len(rest) > 0:
		change(m.Mutable(fd).Message(), rest, way)
	case way == cleared || fd.Message() != nil:
		m.Clear(fd)
	default:
		m.Set(fd, other(fd, m.Get(fd), way))
	}
}

// other returns another value of a field. Of an enum there are as many as it has
// other values, else there is one.
func other(fd protoreflect.FieldDescriptor, v protoreflect.Value, way int) protoreflect.Value {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(!v.Bool())
	case protoreflect.EnumKind:
		values := fd.Enum().Values()
		for i := range values.Len() {
			if n := values.Get(i).Number(); n != v.Enum() {
				if way == 0 {
					return protoreflect.ValueOfEnum(n)
				}
				way--
			}
		}
		return v
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(otherText(v.String()))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(append(slices.Clone(v.Bytes()), 'x'))
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(float32(otherNumber(v.Float())))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(otherNumber(v.Float()))
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(int32(otherInt(v.Int())))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(otherInt(v.Int()))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(otherInt(int64(v.Uint()))))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(uint64(otherInt(int64(v.Uint()))))
	}
	return v
}

// most are upper limits that fields commonly have: percents, ports, codes.
var most = []int64{100, 599, 65535}

func otherInt(n int64) int64 {
	if slices.Contains(most, n) {
		return n - 1
	}
	return n + 1
}

func otherNumber(f float64) float64 {
	if f >= 1 {
		return float64(otherInt(int64(f)))
	}
	return f / 2
}

// otherText returns another text of the same form.
func otherText(s string) string {
	if ip, err := netip.ParseAddr(s); err == nil {
		if next := ip.Next(); next.IsValid() {
			return next.String()
		}
	}
	if p, err := netip.ParsePrefix(s); err == nil && p.Bits() > 0 {
		return netip.PrefixFrom(p.Addr(), p.Bits()-1).Masked().String()
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return strconv.FormatInt(otherInt(n), 10)
	}
	if n, err := strconv.ParseInt(strings.TrimSuffix(s, "s"), 10, 64); err == nil { // a duration in free JSON
		return strconv.FormatInt(otherInt(n), 10) + "s"
	}
	if rest, ok := strings.CutPrefix(s, "*"); ok && rest != "" {
		return s + "x"
	}
	if rest, ok := strings.CutPrefix(s, "/"); ok {
		return "/x" + rest
	}
	return "x" + s
}
