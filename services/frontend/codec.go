package frontend

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/services/frontend/stream"
)

// codec writes responses as lists of slices that all streams share, and reads
// requests without what is not needed. Other messages are as usual.
type codec struct{}

var _ encoding.CodecV2 = codec{}

// Name implements encoding.CodecV2.
func (codec) Name() string { return "proto" }

// request is a DiscoveryRequest. Of the node, up to 61 KB which may come with
// every request (E34), the bytes are kept only where they are wanted.
type request struct {
	stream.Request
	wantNode bool
	node     []byte // nil: there is none
}

// response is a DiscoveryResponse.
type response struct {
	stream.Response
	identifier string // of the frontend, for Envoy's stats
}

// Fields of DiscoveryRequest, DiscoveryResponse, ControlPlane and
// google.rpc.Status.
const (
	requestVersion, requestNode, requestNames, requestType, requestNonce, requestError = 1, 2, 3, 4, 5, 6

	responseVersion, responseType, responseNonce, responseControlPlane = 1, 4, 5, 6

	controlPlaneIdentifier = 1
	statusMessage          = 2
)

// Marshal implements encoding.CodecV2.
func (codec) Marshal(v any) (mem.BufferSlice, error) {
	switch v := v.(type) {
	case *response:
		return v.buffers(), nil
	case proto.Message:
		b, err := proto.Marshal(v)
		if err != nil {
			return nil, err
		}
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	return nil, fmt.Errorf("cannot send a %T", v)
}

func (r *response) buffers() mem.BufferSlice {
	var head []byte
	text := func(field protowire.Number, s string) {
		head = protowire.AppendTag(head, field, protowire.BytesType)
		head = protowire.AppendString(head, s)
	}
	text(responseVersion, r.Version)
	text(responseType, r.Type.URL())
	text(responseNonce, r.Nonce)
	if r.identifier != "" {
		inner := protowire.AppendTag(nil, controlPlaneIdentifier, protowire.BytesType)
		text(responseControlPlane, string(protowire.AppendString(inner, r.identifier)))
	}
	buffers := make(mem.BufferSlice, 0, 1+2*len(r.Resources))
	buffers = append(buffers, mem.SliceBuffer(head))
	for _, resource := range r.Resources {
		buffers = append(buffers, mem.SliceBuffer(resource.Head))
		for _, p := range resource.Pieces {
			buffers = append(buffers, mem.SliceBuffer(p.Value))
		}
	}
	return buffers
}

// Unmarshal implements encoding.CodecV2.
func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	b := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer b.Free()
	switch v := v.(type) {
	case *request:
		return v.decode(b.ReadOnlyData())
	case proto.Message:
		return proto.Unmarshal(b.ReadOnlyData(), v)
	}
	return fmt.Errorf("cannot receive a %T", v)
}

func (r *request) decode(b []byte) error {
	for len(b) > 0 {
		field, wire, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("DiscoveryRequest: %w", protowire.ParseError(n))
		}
		b = b[n:]
		if wire != protowire.BytesType || field > requestError {
			if n = protowire.ConsumeFieldValue(field, wire, b); n < 0 {
				return fmt.Errorf("DiscoveryRequest: %w", protowire.ParseError(n))
			}
			b = b[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return fmt.Errorf("DiscoveryRequest: %w", protowire.ParseError(n))
		}
		b = b[n:]
		switch field {
		case requestVersion:
			r.Version = string(value)
		case requestNode:
			if r.wantNode {
				r.node = append([]byte{}, value...)
			}
		case requestNames:
			r.Names = append(r.Names, string(value))
		case requestType:
			r.TypeURL = string(value)
		case requestNonce:
			r.Nonce = string(value)
		case requestError:
			r.Rejected, r.Error = true, errorMessage(value)
		}
	}
	return nil
}

// errorMessage is the message of a google.rpc.Status.
func errorMessage(b []byte) string {
	for len(b) > 0 {
		field, wire, n := protowire.ConsumeTag(b)
		if n < 0 {
			return ""
		}
		b = b[n:]
		if field == statusMessage && wire == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(b)
			return string(value)
		}
		if n = protowire.ConsumeFieldValue(field, wire, b); n < 0 {
			return ""
		}
		b = b[n:]
	}
	return ""
}
