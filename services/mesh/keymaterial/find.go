package keymaterial

import (
	"bytes"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/anytype"
)

// Found is a private key in a payload.
type Found struct {
	// Field is the path of the field that holds it; empty if that is not known, because
	// the payload is of a type that this build cannot decode.
	Field string
	// Form is how it is encoded, in words.
	Form string
}

// Find returns the first private key in a value. Values without one, which are nearly
// all, are not decoded.
func Find(v ident.Value) (Found, bool) {
	form := In(v.Bytes)
	certificates := bytes.Contains(v.Bytes, tlsTypes)
	if form == "" && !certificates {
		return Found{}, false
	}
	found := Found{Form: form}
	if t, err := protoregistry.GlobalTypes.FindMessageByURL(v.Type); err == nil {
		m := t.New()
		if err := proto.Unmarshal(v.Bytes, m.Interface()); err == nil {
			if at, ok := find(m, nil, 0); ok {
				found = at
			}
		}
	}
	return found, found.Form != ""
}

// tlsTypes is in the type URL of every message of Envoy that has a TLS certificate, and
// inlineKeys are the fields of a certificate that hold a key.
var (
	tlsTypes   = []byte("envoy.extensions.transport_sockets.tls.")
	inlineKeys = map[protoreflect.FullName]string{
		"envoy.extensions.transport_sockets.tls.v3.TlsCertificate.private_key": "inline",
		"envoy.extensions.transport_sockets.tls.v3.TlsCertificate.pkcs12":      "in PKCS#12",
		"envoy.extensions.transport_sockets.tls.v3.TlsSessionTicketKeys.keys":  "inline",
	}
)

// deepest is how deep messages may nest; Envoy and protobuf allow less.
const deepest = 100

// find walks a message, and the messages in its Anys.
func find(m protoreflect.Message, path []string, depth int) (found Found, ok bool) {
	if depth > deepest {
		return Found{}, false
	}
	if a, isAny := m.Interface().(*anypb.Any); isAny {
		if inner, err := anytype.Unmarshal(a); err == nil {
			return find(inner.ProtoReflect(), path, depth+1)
		}
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := append(path[:len(path):len(path)], string(f.Name()))
		one := func(at []string, v protoreflect.Value, f protoreflect.FieldDescriptor) bool {
			found, ok = findValue(f, v, at, depth)
			return !ok
		}
		switch {
		case f.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				if form := In([]byte(k.String())); form != "" { // do not print the key
					found, ok = Found{Field: strings.Join(at, "."), Form: form}, true
					return false
				}
				return one(append(at[:len(at):len(at)], k.String()), v, f.MapValue())
			})
		case f.IsList():
			for i := range v.List().Len() {
				indexed := append(path[:len(path):len(path)], string(f.Name())+"["+strconv.Itoa(i)+"]")
				if !one(indexed, v.List().Get(i), f) {
					break
				}
			}
		default:
			one(at, v, f)
		}
		return !ok
	})
	return found, ok
}

func findValue(f protoreflect.FieldDescriptor, v protoreflect.Value, at []string, depth int) (Found, bool) {
	form := ""
	switch f.Kind() {
	case protoreflect.MessageKind:
		inner := v.Message()
		if what := inlineKeys[f.FullName()]; what != "" {
			for _, name := range []protoreflect.Name{"inline_bytes", "inline_string"} {
				if field := inner.Descriptor().Fields().ByName(name); field != nil && inner.Has(field) {
					return Found{Field: strings.Join(append(at, string(name)), "."), Form: what}, true
				}
			}
		}
		return find(inner, at, depth+1)
	case protoreflect.StringKind:
		form = In([]byte(v.String()))
	case protoreflect.BytesKind:
		form = In(v.Bytes())
	}
	return Found{Field: strings.Join(at, "."), Form: form}, form != ""
}
