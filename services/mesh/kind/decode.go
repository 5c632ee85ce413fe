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
)

// UndecodedError is what a watcher said of an object that it could not decode.
type UndecodedError struct {
	Field  string // path; empty where not known
	Reason string
}

// Error implements error.
func (e *UndecodedError) Error() string {
	if e.Field == "" {
		return e.Reason
	}
	return e.Field + ": " + e.Reason
}

// Decode reads a payload of the log. For one that a watcher could not decode,
// the error is an *UndecodedError.
func (k *Kind) Decode(typeURL string, b []byte) (proto.Message, error) {
	switch typeURL {
	case k.TypeURL:
		m := k.new()
		if err := proto.Unmarshal(b, m); err != nil {
			return nil, fmt.Errorf("%s: %w", typeURL, err)
		}
		return m, nil
	case ident.Undecoded:
		var u registryv1.Undecoded
		if err := proto.Unmarshal(b, &u); err != nil {
			return nil, fmt.Errorf("%s: %w", typeURL, err)
		}
		return nil, &UndecodedError{Field: u.GetField(), Reason: u.GetError()}
	}
	return nil, fmt.Errorf("a %s holds %s, not %q", k.Name, k.TypeURL, typeURL)
}

// SyntaxError says why JSON is not a message of the kind.
type SyntaxError struct {
	// Line and Column in the JSON, from 1; 0 where not known.
	Line, Column int
	Reason       string
}

// Error is the place and the reason.
func (e *SyntaxError) Error() string {
	if e.Line == 0 {
		return e.Reason
	}
	return fmt.Sprintf("line %d:%d: %s", e.Line, e.Column, e.Reason)
}

// DecodeJSON reads the spec of an object of a kind in the form Spec: proto3
// JSON, in which a field that the type does not have is an error, and durations
// may be written as in Go ("5m"). The error is a *SyntaxError.
func (k *Kind) DecodeJSON(spec []byte) (proto.Message, error) {
	m := k.new()
	if err := protojson.Unmarshal(validate.Durations(spec, m.ProtoReflect().Descriptor()), m); err != nil {
		return nil, syntaxError(err)
	}
	return m, nil
}

// Encode is the payload of m: equal messages have equal bytes.
func (k *Kind) Encode(m proto.Message) ([]byte, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode a %s: %w", k.Name, err)
	}
	return b, nil
}

// protojson says "proto: (line 3:7): reason" or "proto: syntax error (line
// 3:7): reason", with a space that is sometimes a no-break one.
var position = regexp.MustCompile(`^proto: (?:syntax error )?\(line (\d+):(\d+)\): `)

const maxReason = 300

func syntaxError(err error) *SyntaxError {
	e := &SyntaxError{}
	s := strings.ReplaceAll(err.Error(), "\u00a0", " ")
	if at := position.FindStringSubmatchIndex(s); at != nil {
		e.Line, _ = strconv.Atoi(s[at[2]:at[3]])
		e.Column, _ = strconv.Atoi(s[at[4]:at[5]])
		s = s[at[1]:]
	}
	e.Reason = strings.TrimPrefix(s, "proto: ")
	if len(e.Reason) > maxReason { // it repeats the value
		e.Reason = strings.ToValidUTF8(e.Reason[:maxReason], "") + " ..."
	}
	return e
}
