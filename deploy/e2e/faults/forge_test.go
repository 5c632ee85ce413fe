//go:build faults && linux

package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"meshlog.dev/deploy/testkit/program"
)

// schema is what an attacker reads: the schema of the log and of reports.
var schema = sync.OnceValues(func() (*protoregistry.Files, error) {
	root, err := program.Root()
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(filepath.Join(root, "proto", "image.binpb"))
	if err != nil {
		return nil, err
	}
	files := new(descriptorpb.FileDescriptorSet)
	if err := proto.Unmarshal(b, files); err != nil {
		return nil, fmt.Errorf("proto/image.binpb: %w", err)
	}
	return protodesc.NewFiles(files)
})

// forge returns the bytes of a message, of which text has the fields.
func forge(message protoreflect.FullName, text string) []byte {
	files, err := schema()
	if err != nil {
		panic(err)
	}
	d, err := files.FindDescriptorByName(message)
	if err != nil {
		panic(fmt.Errorf("proto/image.binpb: %w", err))
	}
	m := dynamicpb.NewMessage(d.(protoreflect.MessageDescriptor))
	if err := prototext.Unmarshal([]byte(text), m); err != nil {
		panic(fmt.Errorf("a forged %s: %w", message, err))
	}
	b, err := proto.Marshal(m)
	if err != nil {
		panic(fmt.Errorf("a forged %s: %w", message, err))
	}
	return b
}
