package fleet

import (
	"encoding/binary"
	"fmt"
	"io"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// codec sends requests as slices that proxies share, and reads only those parts
// of a response that an ACK needs. A client that decoded resources would measure
// itself.
type codec struct{}

var _ encoding.CodecV2 = codec{}

// request is an encoded request.
type request mem.BufferSlice

// response is a DiscoveryResponse or a DeltaDiscoveryResponse.
type response struct {
	keep bool // keep body

	version, typeURL, nonce string
	size                    int
	body                    []byte // nil unless keep
}

// Fields of DiscoveryResponse and, with the same numbers,
// DeltaDiscoveryResponse.
const (
	responseVersion   = 1
	responseResources = 2
	responseType      = 4
	responseNonce     = 5
)

// Name implements encoding.CodecV2.
func (codec) Name() string { return "proto" }

// Marshal implements encoding.CodecV2.
func (codec) Marshal(v any) (mem.BufferSlice, error) {
	r, ok := v.(request)
	if !ok {
		return nil, fmt.Errorf("cannot send a %T", v)
	}
	return mem.BufferSlice(r), nil
}

// Unmarshal implements encoding.CodecV2.
func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	r, ok := v.(*response)
	if !ok {
		return fmt.Errorf("cannot receive a %T", v)
	}
	r.size = data.Len()
	if r.keep {
		r.body = data.Materialize()
	}
	return r.read(data)
}

// read skips the resources without decoding them.
func (r *response) read(data mem.BufferSlice) error {
	in := data.Reader()
	defer in.Close()
	for in.Remaining() > 0 {
		tag, err := binary.ReadUvarint(in)
		if err != nil {
			return fmt.Errorf("response: %w", err)
		}
		field, wire := protowire.DecodeTag(tag)
		if wire == protowire.VarintType {
			if _, err := binary.ReadUvarint(in); err != nil {
				return fmt.Errorf("response: field %d: %w", field, err)
			}
			continue
		}
		if wire != protowire.BytesType {
			return fmt.Errorf("response: field %d is of wire type %d", field, wire)
		}
		n, err := binary.ReadUvarint(in)
		if err != nil || n > uint64(in.Remaining()) {
			return fmt.Errorf("response: field %d is cut off", field)
		}
		switch field {
		case responseVersion:
			r.version, err = text(in, n)
		case responseType:
			r.typeURL, err = text(in, n)
		case responseNonce:
			r.nonce, err = text(in, n)
		default:
			_, err = in.Discard(int(n))
		}
		if err != nil {
			return fmt.Errorf("response: field %d: %w", field, err)
		}
	}
	return nil
}

func text(in io.Reader, n uint64) (string, error) {
	b := make([]byte, n)
	_, err := io.ReadFull(in, b)
	return string(b), err
}

// resources returns the resources of an encoded response: field 2, with its tags.
func resources(body []byte) ([]byte, error) {
	var out []byte
	for len(body) > 0 {
		field, _, n := protowire.ConsumeField(body)
		if n < 0 {
			return nil, fmt.Errorf("response: %w", protowire.ParseError(n))
		}
		if field == responseResources {
			out = append(out, body[:n]...)
		}
		body = body[n:]
	}
	return out, nil
}

// appendText appends a bytes or string field.
func appendText[T string | []byte](b []byte, field protowire.Number, v T) []byte {
	b = protowire.AppendTag(b, field, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(len(v)))
	return append(b, v...)
}
