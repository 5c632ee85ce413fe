package kind

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/anytype"
	"meshlog.dev/services/mesh/keymaterial"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/problem"
)

// Decode reads a payload of the log. The message is read-only, because endpoints
// share their labels. The error is a *problem.Diagnostic: if a watcher could not
// decode the object, it holds what the watcher found wrong.
func (k *Kind) Decode(typeURL string, b []byte) (proto.Message, error) {
	var u registryv1.Undecoded
	m := proto.Message(&u)
	switch typeURL {
	case k.TypeURL:
		m = k.new()
	case ident.Undecoded:
	case ident.DryRun:
		if k.Name != "AuthorizationPolicy" {
			return nil, undecoded("", fmt.Sprintf("a %s has no dry run", k.Name))
		}
		return k.decodeDryRun(b)
	case ident.ProxyKeys:
		if k.Name != "RequestAuthentication" {
			return nil, undecoded("", fmt.Sprintf("a %s has no keys of issuers", k.Name))
		}
		return k.decodeProxyKeys(b)
	case ident.Closed:
		if !k.Security {
			return nil, undecoded("", fmt.Sprintf("a %s does not fail closed", k.Name))
		}
		m = &registryv1.Closed{}
	default:
		return nil, undecoded("", fmt.Sprintf("a %s holds %s, not %q", k.Name, k.TypeURL, typeURL))
	}
	if err := proto.Unmarshal(b, m); err != nil {
		return nil, undecoded("", fmt.Sprintf("%s: %v", typeURL, err))
	}
	if typeURL == ident.Undecoded {
		return nil, undecoded(u.GetField(), u.GetError())
	}
	switch m := m.(type) {
	case *registryv1.Endpoints:
		shareLabels(m.GetEndpoints(), func(e *registryv1.Endpoint) *map[string]string { return &e.Labels })
	case *networking.ServiceEntry:
		shareLabels(m.GetEndpoints(), func(e *networking.WorkloadEntry) *map[string]string { return &e.Labels })
	}
	return m, nil
}

// shareLabels gives endpoints with equal labels one map: the endpoints of a
// service have few different labels, and the maps are most of their memory.
func shareLabels[E any](endpoints []E, labels func(E) *map[string]string) {
	const most = 8
	var known []map[string]string
	for _, e := range endpoints {
		of := labels(e)
		i := slices.IndexFunc(known, func(k map[string]string) bool { return maps.Equal(k, *of) })
		if i >= 0 {
			*of = known[i]
		} else if len(known) < most {
			known = append(known, *of)
		}
	}
}

func undecoded(field, reason string) *problem.Diagnostic {
	return &problem.Diagnostic{Severity: problem.Error, Code: "undecoded", Field: field, Reason: reason, Advice: "correct the object at its source"}
}

// Undecoded returns the value of an object that cannot be decoded because of bad:
// on the log, its key keeps its last good value. data is the object as its source
// gave it, which the value leaves out if it holds a private key. The value has no
// line, so that moving an object in its file is no change.
func Undecoded(data []byte, mediaType string, bad *problem.Diagnostic) ident.Value {
	if keymaterial.In(data) != "" {
		data = nil
	}
	why := bad.Reason
	if strings.HasSuffix(bad.Advice, "?") { // what was probably meant; other advice is the same for all
		why += "; " + bad.Advice
	}
	u := &registryv1.Undecoded{
		Data: data, MediaType: mediaType,
		Field: strings.ToValidUTF8(bad.Field, "?"), Error: strings.ToValidUTF8(why, "?"),
	}
	b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(u) // it cannot fail: the texts are valid UTF-8
	return ident.Value{Type: ident.Undecoded, Bytes: b}
}

// DecodeJSON reads the spec of an object whose kind has the form Spec. The spec
// is proto3 JSON; an unknown field is an error, which names the field that was probably
// meant, and a duration may be written as in Go ("5m"). The error is a *problem.Diagnostic
// with the line in spec.
func (k *Kind) DecodeJSON(spec []byte) (proto.Message, error) {
	m := k.new()
	options := protojson.UnmarshalOptions{Resolver: anytype.Types}
	if err := options.Unmarshal(validate.Durations(spec, m.ProtoReflect().Descriptor()), m); err != nil {
		bad := syntaxError(err)
		k.suggest(bad, spec)
		return nil, bad
	}
	return m, nil
}

// Encode returns the payload of m. Equal messages have equal payloads.
func (k *Kind) Encode(m proto.Message) ([]byte, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode a %s: %w", k.Name, err)
	}
	return b, nil
}

// position matches the beginning of protojson's errors: "proto: (line 3:7): ", or
// "proto: syntax error (line 3:7): ". Some of the spaces are no-break spaces.
var position = regexp.MustCompile(`^proto: (?:syntax error )?\(line (\d+):\d+\): `)

const maxReason = 300

func syntaxError(err error) *problem.Diagnostic {
	d := &problem.Diagnostic{Severity: problem.Error, Code: "syntax"}
	s := strings.ReplaceAll(err.Error(), "\u00a0", " ")
	if at := position.FindStringSubmatch(s); at != nil {
		d.Line, _ = strconv.Atoi(at[1])
		s = s[len(at[0]):]
	}
	d.Reason = strings.TrimPrefix(s, "proto: ")
	if len(d.Reason) > maxReason { // it repeats the value
		d.Reason = strings.ToValidUTF8(d.Reason[:maxReason], "") + " ..."
	}
	return d
}

// Document returns a payload of the log as JSON, as its source would write it:
// the spec of an Istio kind, the whole object of other kinds. Equal payloads have
// equal documents. It is an error if this build cannot read the payload.
func Document(name, typeURL string, b []byte) (json.RawMessage, error) {
	k, ok := ByName(name)
	if !ok {
		return nil, fmt.Errorf("this build knows no kind %q", name)
	}
	m, err := k.Decode(typeURL, b)
	if err != nil {
		return nil, err
	}
	if whole, ok := m.(*registryv1.Object); ok {
		return compact(whole.GetJson())
	}
	if b, err = (protojson.MarshalOptions{Resolver: anytype.Types}).Marshal(m); err != nil {
		return nil, err
	}
	return compact(b) // protojson puts spaces where it likes
}

func compact(b []byte) (json.RawMessage, error) {
	var out bytes.Buffer
	if err := json.Compact(&out, b); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
