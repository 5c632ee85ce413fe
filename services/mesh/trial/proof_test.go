package trial_test

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
)

// mutants yields copies of m that differ in one field: each field of each
// message in it is set to each value of its pool, unset, and where it is a
// message, a list or a map, filled. path names the field. Only wanted fields
// change. Fields of messages that m lacks change too, down to deepest of them
// within each other. Fields in without, paths without indices, stay as they are.
func mutants(m proto.Message, deepest int, without map[string]bool, wanted func(protoreflect.FieldDescriptor) bool, yield func(path string, mutant proto.Message)) {
	w := walker{root: m.ProtoReflect(), deepest: deepest, without: without, wanted: wanted, yield: yield}
	w.message(m.ProtoReflect().Descriptor(), nil, 0)
}

var position = regexp.MustCompile(`\[[^]]*\]`)

func every(protoreflect.FieldDescriptor) bool { return true }

type walker struct {
	root    protoreflect.Message
	deepest int
	without map[string]bool
	wanted  func(protoreflect.FieldDescriptor) bool
	yield   func(path string, mutant proto.Message)
}

// step is a field on the way from the root: of a message, or of the element
// of a list or map.
type step struct {
	fd    protoreflect.FieldDescriptor
	index int
	key   protoreflect.MapKey
}

// at returns a copy of the root and the message at the end of the way in it,
// which it makes where there is none.
func (w *walker) at(way []step) (protoreflect.Message, protoreflect.Message) {
	root := proto.Clone(w.root.Interface()).ProtoReflect()
	m := root
	for _, s := range way {
		switch {
		case s.fd.IsList():
			list := m.Mutable(s.fd).List()
			for list.Len() <= s.index {
				list.AppendMutable()
			}
			m = list.Get(s.index).Message()
		case s.fd.IsMap():
			entries := m.Mutable(s.fd).Map()
			if !entries.Has(s.key) {
				entries.Set(s.key, entries.NewValue())
			}
			m = entries.Get(s.key).Message()
		default:
			m = m.Mutable(s.fd).Message()
		}
	}
	return root, m
}

func (w *walker) name(way []step, fd protoreflect.FieldDescriptor) string {
	var b strings.Builder
	for _, s := range way {
		fmt.Fprintf(&b, ".%s", s.fd.JSONName())
		switch {
		case s.fd.IsList():
			fmt.Fprintf(&b, "[%d]", s.index)
		case s.fd.IsMap():
			fmt.Fprintf(&b, "[%v]", s.key)
		}
	}
	return fmt.Sprintf("%s.%s", b.String(), fd.JSONName())[1:]
}

// mutate yields a copy in which f has changed the message at the end of the way.
func (w *walker) mutate(way []step, fd protoreflect.FieldDescriptor, what any, f func(m protoreflect.Message)) {
	if !w.wanted(fd) {
		return
	}
	root, m := w.at(way)
	f(m)
	w.yield(fmt.Sprintf("%s=%.60v", w.name(way, fd), what), root.Interface())
}

// message mutates the fields of the message at the end of the way. filled is how
// many messages of the way the base does not have.
func (w *walker) message(d protoreflect.MessageDescriptor, way []step, filled int) {
	_, here := w.at(way)
	first := !slices.ContainsFunc(way, func(s step) bool { return s.index > 0 })
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		if !first && !here.Has(fd) || w.without[position.ReplaceAllString(w.name(way, fd), "")] {
			continue // the first element of a list gets the fields that none has
		}
		if here.Has(fd) {
			w.mutate(way, fd, "unset", func(m protoreflect.Message) { m.Clear(fd) })
		}
		switch {
		case fd.IsMap():
			w.entries(way, fd, here, filled)
		case fd.IsList():
			w.list(way, fd, here, filled)
		case fd.Message() != nil && pool(fd) == nil:
			w.into(way, step{fd: fd}, here.Has(fd), filled)
		default:
			for _, v := range pool(fd) {
				w.mutate(way, fd, v, func(m protoreflect.Message) { m.Set(fd, v) })
			}
		}
	}
}

// into mutates the message of a field.
func (w *walker) into(way []step, s step, has bool, filled int) {
	if !has {
		w.mutate(way, s.fd, "{}", func(protoreflect.Message) {})
		if filled++; filled > w.deepest {
			return
		}
	}
	d := s.fd.Message()
	if s.fd.IsMap() {
		d = s.fd.MapValue().Message()
	}
	inside := 0
	for _, above := range way {
		if above.fd.Message() == s.fd.Message() {
			inside++
		}
	}
	if inside == 0 { // a message within itself is mutated once
		w.message(d, append(slices.Clip(way), s), filled)
	}
}

func (w *walker) list(way []step, fd protoreflect.FieldDescriptor, here protoreflect.Message, filled int) {
	n := here.Get(fd).List().Len()
	if n > 0 {
		w.mutate(way, fd, "twice", func(m protoreflect.Message) {
			list := m.Mutable(fd).List()
			list.Append(list.Get(n - 1))
		})
	}
	if fd.Message() != nil && pool(fd) == nil {
		for i := range max(n, 1) {
			w.into(way, step{fd: fd, index: i}, i < n, filled)
		}
		return
	}
	for _, v := range pool(fd) {
		w.mutate(way, fd, v, func(m protoreflect.Message) {
			if list := m.Mutable(fd).List(); n > 0 {
				list.Set(0, v)
			} else {
				list.Append(v)
			}
		})
	}
}

func (w *walker) entries(way []step, fd protoreflect.FieldDescriptor, here protoreflect.Message, filled int) {
	keys := pool(fd.MapKey())
	value := fd.MapValue()
	for _, k := range keys { // another key
		w.mutate(way, fd, k, func(m protoreflect.Message) {
			entries := m.Mutable(fd).Map()
			v := entries.NewValue()
			entries.Range(func(_ protoreflect.MapKey, has protoreflect.Value) bool {
				v = has
				return false
			})
			entries.Set(k.MapKey(), v)
		})
	}
	has := []protoreflect.MapKey{}
	here.Get(fd).Map().Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		has = append(has, k)
		return true
	})
	if len(has) == 0 {
		has = append(has, protoreflect.ValueOfString("x").MapKey())
	}
	for _, k := range has {
		if value.Message() != nil {
			w.into(way, step{fd: fd, key: k}, here.Get(fd).Map().Has(k), filled)
			continue
		}
		for _, v := range pool(value) {
			w.mutate(way, fd, v, func(m protoreflect.Message) { m.Mutable(fd).Map().Set(k, v) })
		}
	}
}

// pool returns the values that a field is set to; nil: it is a message whose
// fields are.
func pool(fd protoreflect.FieldDescriptor) []protoreflect.Value {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return values(protoreflect.ValueOfBool, true, false)
	case protoreflect.StringKind:
		return values(protoreflect.ValueOfString, texts...)
	case protoreflect.BytesKind:
		return values(protoreflect.ValueOfBytes, []byte{}, []byte{0}, make([]byte, 1<<20+1))
	case protoreflect.EnumKind:
		all := values(protoreflect.ValueOfEnum, -1, 99)
		for i := range fd.Enum().Values().Len() {
			all = append(all, protoreflect.ValueOfEnum(fd.Enum().Values().Get(i).Number()))
		}
		return all
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return clamped(math.MinInt32, math.MaxInt32, func(n int64) protoreflect.Value { return protoreflect.ValueOfInt32(int32(n)) })
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return clamped(math.MinInt64, math.MaxInt64, protoreflect.ValueOfInt64)
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return clamped(0, math.MaxUint32, func(n int64) protoreflect.Value { return protoreflect.ValueOfUint32(uint32(n)) })
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return append(clamped(0, math.MaxInt64, func(n int64) protoreflect.Value { return protoreflect.ValueOfUint64(uint64(n)) }), protoreflect.ValueOfUint64(math.MaxUint64))
	case protoreflect.FloatKind:
		return values(func(v float64) protoreflect.Value { return protoreflect.ValueOfFloat32(float32(v)) }, fractions...)
	case protoreflect.DoubleKind:
		return values(protoreflect.ValueOfFloat64, fractions...)
	}
	if fd.Message() != nil && fd.Message().FullName() == "google.protobuf.Duration" {
		return values(func(d *durationpb.Duration) protoreflect.Value { return protoreflect.ValueOfMessage(d.ProtoReflect()) }, durations()...)
	}
	return nil
}

func values[T any](of func(T) protoreflect.Value, all ...T) []protoreflect.Value {
	out := make([]protoreflect.Value, len(all))
	for i, v := range all {
		out[i] = of(v)
	}
	return out
}

func clamped(low, high int64, of func(int64) protoreflect.Value) []protoreflect.Value {
	var out []protoreflect.Value
	for _, n := range append(numbers(), low, high) {
		if n >= low && n <= high {
			out = append(out, of(n))
		}
	}
	return out
}

var (
	fractions = []float64{-1, math.Copysign(0, -1), 0, 1e-300, 1e-5, 0.00009, 0.0001, 0.5, 1, 1.5, 99.99999, 100, 100.1, 1e300, math.NaN(), math.Inf(1), math.Inf(-1)}
	// texts has one of each sort: what differs in nothing that validation, generation or
	// Envoy's API looks at costs time and finds nothing.
	texts = []string{
		"", " ", "a", "a.b", "*", "*.a.b", "*a.b", "~", "/", "a/b",
		"a\x00b", "a\r\nb", ":path", "host", "99999",
		"10.0.0.1", "10.0.0.0/8", "10.0.0.0/33", "fe80::1%eth0", "unix:///run/x", "https",
		"(", "(a?)+", "a{1001}", "(?=a)", `\C`, "%", "%REQ(", "%REQ(a)%", "%NOPE%", "%DOWNSTREAM_PEER_CERT_V_END(%b %d)%",
		"@request.auth.claims.", "@request.auth.claims.a", "@request.auth.claims[a][]", "5xx,",
		strings.Repeat("a", 256), strings.Repeat("a", 16385), strings.Repeat("(a?)", 100),
	}
)

func numbers() []int64 {
	all := []int64{-1, 0, 1, 3, 10, 100, 101, 199, 200, 599, 600, 1000, 65535, 65536, 5000011, 5000012, 8388608, 8388609, math.MaxInt32, math.MaxInt32 + 1, math.MaxUint32}
	slices.Sort(all)
	return slices.Compact(all)
}

func durations() []*durationpb.Duration {
	all := []*durationpb.Duration{{}, {Nanos: 1_000_000_000}, {Seconds: 1, Nanos: -1}, {Seconds: 315576000001}, {Seconds: math.MaxInt64}, {Seconds: math.MinInt64}}
	for _, seconds := range []int64{-1, 1, 59, 3600, 4294967, 4294968, 9223372035, 9223372036, 9223372037, 315576000000} {
		all = append(all, &durationpb.Duration{Seconds: seconds})
	}
	for _, nanos := range []int32{-1, 1, 1_000, 100_000, 999_999, 1_000_000, 1_500_000, 999_999_999} {
		all = append(all, &durationpb.Duration{Nanos: nanos})
	}
	return append(all, &durationpb.Duration{Seconds: 3600, Nanos: 1}, &durationpb.Duration{Seconds: 9223372036, Nanos: 999_999_999})
}
