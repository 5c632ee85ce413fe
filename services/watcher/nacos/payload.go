package nacos

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// The fields of Nacos' messages, from nacos_grpc_service.proto: Payload has metadata and
// body, Metadata has type, headers and clientIp, and the body is an Any whose value is
// JSON.
const (
	fieldMetadata, fieldBody               = 2, 3
	fieldType, fieldHeaders, fieldClientIP = 3, 7, 8
	fieldKey, fieldValue                   = 1, 2 // of an entry of the headers
	fieldAnyValue                          = 2
)

// payload is one message, in either direction.
type payload struct {
	kind     string            // such as ServiceListRequest
	clientIP string            // of the sender
	headers  map[string]string // the access token
	body     []byte            // JSON
}

func (p *payload) encode() []byte {
	var metadata []byte
	metadata = appendField(metadata, fieldType, []byte(p.kind))
	for k, v := range p.headers {
		metadata = appendField(metadata, fieldHeaders, appendField(appendField(nil, fieldKey, []byte(k)), fieldValue, []byte(v)))
	}
	metadata = appendField(metadata, fieldClientIP, []byte(p.clientIP))
	return appendField(appendField(nil, fieldMetadata, metadata), fieldBody, appendField(nil, fieldAnyValue, p.body))
}

func appendField(to []byte, field protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, field, protowire.BytesType), value)
}

// decode takes what the watcher uses of a message: its type, its headers and its body.
func (p *payload) decode(b []byte) error {
	return eachField(b, func(field protowire.Number, value []byte) error {
		switch field {
		case fieldMetadata:
			return eachField(value, p.metadata)
		case fieldBody:
			return eachField(value, func(field protowire.Number, value []byte) error {
				if field == fieldAnyValue {
					p.body = value
				}
				return nil
			})
		}
		return nil
	})
}

func (p *payload) metadata(field protowire.Number, value []byte) error {
	switch field {
	case fieldType:
		p.kind = string(value)
	case fieldClientIP:
		p.clientIP = string(value)
	case fieldHeaders:
		var k, v string
		err := eachField(value, func(field protowire.Number, value []byte) error {
			switch field {
			case fieldKey:
				k = string(value)
			case fieldValue:
				v = string(value)
			}
			return nil
		})
		if p.headers == nil {
			p.headers = map[string]string{}
		}
		p.headers[k] = v
		return err
	}
	return nil
}

// eachField calls f for each field of a message that has bytes, and skips others.
func eachField(b []byte, f func(field protowire.Number, value []byte) error) error {
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(field, kind, b); n < 0 {
				return protowire.ParseError(n)
			}
			b = b[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		if err := f(field, value); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// codec encodes payloads for gRPC.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	p, ok := v.(*payload)
	if !ok {
		return nil, fmt.Errorf("encode a %T: want a payload", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(p.encode())}, nil
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	p, ok := v.(*payload)
	if !ok {
		return fmt.Errorf("decode a %T: want a payload", v)
	}
	*p = payload{}
	return p.decode(data.Materialize())
}
