// Package piece defines the units of generation: parts, which are small values
// that can make something, and the pieces of Envoy resources that they make.
//
// It is pure.
package piece

import (
	"google.golang.org/protobuf/proto"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
)

// Part describes something to make and holds everything of a class that it
// depends on: equal parts make equal pieces from one PushContext, for any
// class. So a part is made once for all classes that have it, and again only
// when an input that it read has changed. It is comparable and small: names,
// never content.
type Part interface {
	// Make makes the pieces. Its only inputs are the part itself and what it
	// reads. The Diagnostics report objects whose content does not take effect as
	// written.
	Make(r *index.Reader) ([]Piece, []problem.Diagnostic)
}

// Problem is a Part that makes nothing: it reports what was found while the
// other parts were put together.
type Problem problem.Diagnostic

// Make implements Part.
func (p Problem) Make(*index.Reader) ([]Piece, []problem.Diagnostic) {
	return nil, []problem.Diagnostic{problem.Diagnostic(p)}
}

// Piece is a whole resource, or a part of one that many resources may share.
// The bytes of protobuf messages can be concatenated, so a virtual host is
// encoded once for every RouteConfiguration that has it.
type Piece struct {
	// Name of the resource.
	Name string
	// Message is the resource, or with Partial a message of its type with some
	// fields set.
	Message proto.Message
	// Value is the encoded message of a raw resource, served as it is; then
	// Message is nil.
	Value []byte
	// Key is the private key that a Secret needs; nil: none.
	Key *Key
	// Partial pieces of one name, in the order of their parts, are one resource. A
	// whole piece counts alone; of several the first wins.
	Partial bool
}
