// Package row takes resources apart that are rows of independent pieces: the
// virtual hosts of a RouteConfiguration, the filter chains of a Listener. If
// clients reject a resource, it finds the pieces to blame and what is served in
// their place, so that the other pieces flow. Of a generated message that they would
// reject it closes these pieces.
//
// It is pure: results depend on the arguments alone.
package row

import (
	"crypto/sha256"

	"google.golang.org/protobuf/encoding/protowire"

	"meshlog.dev/proto/ident"
)

// Sum identifies the bytes of a piece.
type Sum [16]byte

// SumOf returns the Sum of the bytes of a piece with their tag, as they are in
// the resource.
func SumOf(piece []byte) Sum {
	h := sha256.Sum256(piece)
	return Sum(h[:len(Sum{})])
}

// Fields of the messages that hold pieces.
const (
	virtualHosts       protowire.Number = 2 // envoy.config.route.v3.RouteConfiguration
	filterChains       protowire.Number = 3 // envoy.config.listener.v3.Listener
	defaultFilterChain protowire.Number = 25
)

// isPiece reports whether a field of a resource of type t holds a piece.
func isPiece(t ident.ResourceType, field protowire.Number) bool {
	switch t {
	case ident.LDS:
		return field == filterChains || field == defaultFilterChain
	case ident.RDS:
		return field == virtualHosts
	}
	return false
}

// Has reports whether resources of type t are rows of pieces.
func Has(t ident.ResourceType) bool { return t == ident.LDS || t == ident.RDS }

// each calls take for every field of an encoded resource in order, with its tag;
// once with field 0 for the rest, if it is no message.
func each(value []byte, take func(field protowire.Number, bytes []byte)) {
	for len(value) > 0 {
		field, _, n := protowire.ConsumeField(value)
		if n < 0 {
			take(0, value)
			return
		}
		take(field, value[:n:n])
		value = value[n:]
	}
}

// Replace returns an encoded resource of type t, or a part of one, with other
// bytes in place of some pieces. If it has none of these pieces, replaced is
// false.
func Replace(t ident.ResourceType, value []byte, by func(Sum) (bytes []byte, ok bool)) (out []byte, replaced bool) {
	if !Has(t) {
		return value, false
	}
	each(value, func(field protowire.Number, bytes []byte) {
		if isPiece(t, field) {
			if with, ok := by(SumOf(bytes)); ok {
				out, replaced = append(out, with...), true
				return
			}
		}
		out = append(out, bytes...)
	})
	if !replaced {
		return value, false
	}
	return out, true
}

// split returns the pieces of an encoded resource, and all other fields.
func split(t ident.ResourceType, value []byte) (frame []byte, pieces [][]byte) {
	each(value, func(field protowire.Number, bytes []byte) {
		if isPiece(t, field) {
			pieces = append(pieces, bytes)
		} else {
			frame = append(frame, bytes...)
		}
	})
	return frame, pieces
}

// Alone reports whether an encoded part of a resource is one piece and nothing
// else.
func Alone(t ident.ResourceType, value []byte) bool {
	field, _, n := protowire.ConsumeField(value)
	return n == len(value) && isPiece(t, field)
}

// Pieces returns the Sums of the pieces of an encoded resource, in order.
func Pieces(t ident.ResourceType, value []byte) []Sum {
	_, pieces := split(t, value)
	sums := make([]Sum, len(pieces))
	for i, p := range pieces {
		sums[i] = SumOf(p)
	}
	return sums
}
