package anytype_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	_ "google.golang.org/grpc/balancer/rls" // registers grpc.lookup.v1
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/anypb"

	grpclookupv1 "meshlog.dev/proto/meshlog/grpclookup/v1"
	"meshlog.dev/services/mesh/anytype"
)

// The messages that are read instead of grpc.lookup.v1 are those of the grpc-go
// that is linked, but for their names (PRO-6).
func TestLookupIsACopy(t *testing.T) {
	original, err := protoregistry.GlobalFiles.FindFileByPath("grpc/lookup/v1/rls_config.proto")
	if err != nil {
		t.Fatal(err)
	}
	want, got := described(original), described(grpclookupv1.File_meshlog_grpclookup_v1_rls_config_proto)
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("change proto/meshlog/grpclookup (-grpc-go +copy):\n%s", diff)
	}
}

// described returns the messages of a file by name, without the name of its package
// and in any order.
func described(f protoreflect.FileDescriptor) map[string]*descriptorpb.DescriptorProto {
	d := protodesc.ToFileDescriptorProto(f)
	all := map[string]*descriptorpb.DescriptorProto{}
	var rename func(*descriptorpb.DescriptorProto)
	rename = func(m *descriptorpb.DescriptorProto) {
		slices.SortFunc(m.GetField(), func(a, b *descriptorpb.FieldDescriptorProto) int { return int(a.GetNumber() - b.GetNumber()) })
		for _, f := range m.GetField() {
			if f.TypeName != nil {
				f.TypeName = proto.String(strings.TrimPrefix(f.GetTypeName(), "."+d.GetPackage()))
			}
		}
		for _, inner := range m.GetNestedType() {
			rename(inner)
		}
	}
	for _, m := range d.GetMessageType() {
		rename(m)
		all[m.GetName()] = m
	}
	return all
}

// A message of grpc.lookup.v1 has the bytes that grpc-go reads, and is JSON again
// under its own name.
func TestRoundTrip(t *testing.T) {
	const text = `{"@type":"type.googleapis.com/grpc.lookup.v1.RouteLookupClusterSpecifier", "routeLookupConfig":{"lookupService":"lookup:80", "maxAge":"60s"}}`
	a := new(anypb.Any)
	if err := (protojson.UnmarshalOptions{Resolver: anytype.Types}).Unmarshal([]byte(text), a); err != nil {
		t.Fatal(err)
	}
	grpcs, err := a.UnmarshalNew()
	if err != nil {
		t.Fatal(err)
	}
	ours, err := anytype.Unmarshal(a)
	if err != nil {
		t.Fatal(err)
	}
	if _, copied := ours.(*grpclookupv1.RouteLookupClusterSpecifier); !copied || len(grpcs.ProtoReflect().GetUnknown()) > 0 {
		t.Errorf("read %T; grpc-go has unknown fields in %v", ours, grpcs)
	}
	for name, types := range map[string]interface {
		protoregistry.MessageTypeResolver
		protoregistry.ExtensionTypeResolver
	}{"ours": anytype.Types, "grpc-go's": protoregistry.GlobalTypes} {
		b, err := protojson.MarshalOptions{Resolver: types}.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.ReplaceAll(string(b), " ", ""); got != strings.ReplaceAll(text, " ", "") {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestUnknownType(t *testing.T) {
	for _, name := range []string{"x.Y", "grpc.lookup.v1.Unknown", ""} {
		if m, err := anytype.Unmarshal(&anypb.Any{TypeUrl: "type.googleapis.com/" + name}); err == nil {
			t.Errorf("%q is a %T", name, m)
		}
	}
}
