package fleet

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Mode is a variant of the protocol.
type Mode int

// The variants of ADS.
const (
	SotW Mode = iota
	Delta
)

// String returns the name of the variant.
func (m Mode) String() string { return [...]string{"sotw", "delta"}[m] }

func (m Mode) method() string {
	return "/envoy.service.discovery.v3.AggregatedDiscoveryService/" +
		[...]string{"StreamAggregatedResources", "DeltaAggregatedResources"}[m]
}

// fields are the fields of a request of a variant; 0: the variant lacks the
// field.
type fields struct{ version, node, names, typeURL, nonce protowire.Number }

var requestFields = [...]fields{
	SotW:  {version: 1, node: 2, names: 3, typeURL: 4, nonce: 5},
	Delta: {node: 1, typeURL: 2, names: 3, nonce: 6},
}

// phrase holds the parts of requests for one type: encoded once, shared by all
// proxies.
type phrase struct {
	subscribe mem.SliceBuffer // type and names
	ack       mem.SliceBuffer // an ACK without version and nonce
}

func phraseOf(m Mode, t Type, names []string) phrase {
	f := requestFields[m]
	var all []byte
	for _, name := range names {
		all = appendText(all, f.names, name)
	}
	of := appendText(nil, f.typeURL, t.URL())
	all = append(all, of...)
	if m == Delta { // an ACK repeats no names
		return phrase{all, of}
	}
	return phrase{all, all}
}

// first returns the first request of a type. Only the first request of a stream
// has a node; otherwise it is nil.
func (p phrase) first(m Mode, node []byte) request {
	r := make(request, 0, 2)
	if node != nil {
		r = append(r, mem.SliceBuffer(appendText(nil, requestFields[m].node, node)))
	}
	return append(r, p.subscribe)
}

// resume returns the first request of a type, in state of the world, by a proxy
// that has a version; empty: none.
func (p phrase) resume(version string, node []byte) request {
	r := p.first(SotW, node)
	if version != "" {
		r = append(r, mem.SliceBuffer(appendText(nil, requestFields[SotW].version, version)))
	}
	return r
}

// acknowledge returns the ACK of a response.
func (p phrase) acknowledge(m Mode, version, nonce string) request {
	f := requestFields[m]
	nonceField := mem.SliceBuffer(appendText(nil, f.nonce, nonce))
	if f.version == 0 {
		return request{p.ack, nonceField}
	}
	return request{mem.SliceBuffer(appendText(nil, f.version, version)), p.ack, nonceField}
}
