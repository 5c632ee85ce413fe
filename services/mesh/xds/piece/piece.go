// Package piece is what generation is made of: parts, each a small value that
// says what is to be made, and the pieces of Envoy resources that they make.
//
// It is pure.
package piece

import (
	"google.golang.org/protobuf/proto"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
)

// Part says what is to be made, and holds all of a class that this depends on:
// equal parts make equal pieces out of one PushContext, for whatever class. So
// a part is made once for all classes that have it, and again only when an
// input that it read has changed. It is comparable, and small: names, never
// content.
type Part interface {
	// Make makes the pieces. All that it knows comes from the part itself and
	// from what it reads. The Diagnostics are about objects whose content does
	// not take effect as it says.
	Make(r *index.Reader) ([]Piece, []problem.Diagnostic)
}

// Piece is a whole resource, or a part of one that many resources may have:
// the bytes of protobuf messages may be put one behind the other, so a virtual
// host is encoded once for every RouteConfiguration that holds it.
type Piece struct {
	// Name is that of the resource.
	Name string
	// Message is the resource, or with Partial a message of its type of which
	// only some fields are set.
	Message proto.Message
	// Value is the message encoded, for what is served as it came; Message is
	// nil then.
	Value []byte
	// Partial pieces of one name, in the order of their parts, are one
	// resource. A whole one counts alone; of several the first.
	Partial bool
}
