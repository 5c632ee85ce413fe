// Package kind is the one table of the kinds of objects that meshlog knows:
// group, versions and name, the protobuf type of the payload, scope,
// validation, and which changes concern endpoints only. What to watch, which
// file documents to accept and what is valid is derived from it.
//
// It is pure.
package kind

import (
	"google.golang.org/protobuf/proto"
)

// Kind is one row of the table.
type Kind struct {
	Group      string   // "envoy.meshlog.dev"
	Versions   []string // accepted ones, the preferred first
	Name       string   // "Resource"; unique in the table
	Namespaced bool
	// TypeURL of the payload on the log.
	TypeURL string
	// Security says that the kind fails closed: a value that cannot be read
	// never falls back silently.
	Security bool

	new           func() proto.Message
	validate      func(proto.Message) []Problem
	endpointsOnly func(old, new proto.Message) bool
}

// Problem is something wrong in an object.
type Problem struct {
	Field   string // path of the field, as the user writes it
	Reason  string
	Advice  string // what to do
	Warning bool   // the object counts all the same
}
