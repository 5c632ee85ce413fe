// Package anytype finds the type that an Any ("@type") in an Envoy resource names:
// those that are linked, and gRPC's grpc.lookup.v1, which configures its route
// lookup service (RLS).
//
// grpc.lookup.v1 cannot be linked: grpc-go keeps it internal, and registers it in
// each program that has its xDS client, where a second registration of the name
// panics. So its messages are read as those of meshlog.grpclookup.v1, which have
// the same bytes and the same JSON.
package anytype

import (
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"

	_ "meshlog.dev/proto/meshlog/grpclookup/v1" // read instead of grpc.lookup.v1
)

// Resolver resolves types for protojson and anypb. It is safe for concurrent use.
type Resolver struct{ *protoregistry.Types }

// Types is the only Resolver.
var Types = Resolver{protoregistry.GlobalTypes}

const (
	lookup = "grpc.lookup.v1."
	copied = "meshlog.grpclookup.v1."
)

// FindMessageByURL returns the type that the URL of an Any names.
func (r Resolver) FindMessageByURL(url string) (protoreflect.MessageType, error) {
	if name, ok := strings.CutPrefix(url[strings.LastIndexByte(url, '/')+1:], lookup); ok {
		return r.FindMessageByName(protoreflect.FullName(copied + name))
	}
	return r.Types.FindMessageByURL(url)
}

// Unmarshal returns the message in a.
func Unmarshal(a *anypb.Any) (proto.Message, error) {
	return anypb.UnmarshalNew(a, proto.UnmarshalOptions{Resolver: Types})
}
