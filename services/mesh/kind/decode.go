package kind

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/problem"
)

// Decode reads a payload of the log. The error is a *problem.Diagnostic: if a
// watcher could not decode the object, it holds what the watcher found wrong.
func (k *Kind) Decode(typeURL string, b []byte) (proto.Message, error) {
	var u registryv1.Undecoded
	m := proto.Message(&u)
	switch typeURL {
	case k.TypeURL:
		m = k.new()
	case ident.Undecoded:
	default:
		return nil, undecoded("", fmt.Sprintf("a %s holds %s, not %q", k.Name, k.TypeURL, typeURL))
	}
	if err := proto.Unmarshal(b, m); err != nil {
		return nil, undecoded("", fmt.Sprintf("%s: %v", typeURL, err))
	}
	if typeURL == ident.Undecoded {
		return nil, undecoded(u.GetField(), u.GetError())
	}
	return m, nil
}

func undecoded(field, reason string) *problem.Diagnostic {
	return &problem.Diagnostic{Severity: problem.Error, Code: "undecoded", Field: field, Reason: reason, Advice: "correct the object at its source"}
}

// DecodeJSON reads the spec of an object whose kind has the form Spec. The spec
// is proto3 JSON; an unknown field is an error, and a duration may be written as
// in Go ("5m"). The error is a *problem.Diagnostic with the line in spec.
func (k *Kind) DecodeJSON(spec []byte) (proto.Message, error) {
	m := k.new()
	if err := protojson.Unmarshal(validate.Durations(spec, m.ProtoReflect().Descriptor()), m); err != nil {
		return nil, syntaxError(err)
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
