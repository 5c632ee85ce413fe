package validate

import (
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// plainMessage is the form of messages in which nothing can be wrong, by field
// number. It saves decoding what changes most often, the endpoints of a raw
// ClusterLoadAssignment. A message of another form may be right, too.
type plainMessage []plainField

type plainField struct {
	of       plainMessage           // of a message
	text     func(text []byte) bool // of a text
	low, top uint64                 // of a number; of a field that is not plain, 0
	repeated bool
	required bool
}

// holds reports whether b is such a message.
func (m plainMessage) holds(b []byte) bool {
	seen := make([]bool, 8)[:len(m)] // on the stack
	for len(b) > 0 {
		number, wire, n := protowire.ConsumeTag(b)
		if n < 0 || int(number) >= len(m) {
			return false
		}
		b = b[n:]
		f := &m[number]
		if seen[number] && !f.repeated {
			return false
		}
		seen[number] = true
		if n = f.holds(b, wire); n < 0 {
			return false
		}
		b = b[n:]
	}
	for number, f := range m {
		if f.required && !seen[number] {
			return false
		}
	}
	return true
}

// holds returns the length of the field's value at the start of b, negative if
// it is not plain.
func (f *plainField) holds(b []byte, wire protowire.Type) int {
	switch {
	case wire == protowire.VarintType && f.top > 0:
		if v, n := protowire.ConsumeVarint(b); v >= f.low && v <= f.top {
			return n
		}
	case wire == protowire.BytesType && f.of != nil:
		if v, n := protowire.ConsumeBytes(b); n >= 0 && f.of.holds(v) {
			return n
		}
	case wire == protowire.BytesType && f.text != nil:
		if v, n := protowire.ConsumeBytes(b); n >= 0 && f.text(v) {
			return n
		}
	}
	return -1
}

var (
	plainWeight   = plainField{of: plainMessage{1: {low: 1, top: math.MaxUint32, required: true}}}
	plainLocality = plainMessage{1: {text: utf8.Valid}, 2: {text: utf8.Valid}, 3: {text: utf8.Valid}}

	plainSocket = plainMessage{
		1: {top: 1}, // TCP and UDP
		2: {text: func(b []byte) bool { return isIP(string(b)) }, required: true},
		3: {top: math.MaxUint16, required: true},
	}
	plainAddress    = plainMessage{1: {of: plainSocket, required: true}}
	plainEndpoint   = plainMessage{1: {of: plainAddress, required: true}, 3: {text: utf8.Valid}}
	plainLbEndpoint = plainMessage{1: {of: plainEndpoint, required: true}, 2: {top: math.MaxInt32}, 4: plainWeight}

	plainLocalityLbEndpoints = plainMessage{
		1: {of: plainLocality}, 2: {of: plainLbEndpoint, repeated: true}, 3: plainWeight, 5: {top: 128},
	}
	plainAssignment = plainMessage{
		1: {text: func(b []byte) bool { return len(b) > 0 && utf8.Valid(b) }, required: true},
		2: {of: plainLocalityLbEndpoints, repeated: true},
	}
)
