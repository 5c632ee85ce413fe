package frontend

import (
	"fmt"
	"iter"
	"unicode/utf8"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/names"
	"meshlog.dev/services/frontend/stream"
	"meshlog.dev/services/mesh/xds"
)

// codec writes responses as lists of slices that all streams share, and reads
// requests without making strings of their names (E28). It leaves other
// messages to proto.
type codec struct {
	pool mem.BufferPool // of requests that came in several pieces; nil: grpc's
}

// newCodec returns a codec whose pool fits requests of 50 KB, the size of an
// ACK with a thousand names: gRPC's own pool has buffers of 32 KB and then of 1
// MB, which it clears every time.
func newCodec() (codec, error) {
	var exponents []uint8
	for e := uint8(8); 1<<e <= maxRequest; e++ {
		exponents = append(exponents, e)
	}
	pool, err := mem.NewBinaryTieredBufferPool(exponents...)
	return codec{pool}, err
}

var _ encoding.CodecV2 = codec{}

// Name implements encoding.CodecV2.
func (codec) Name() string { return "proto" }

// request is a DiscoveryRequest, or with delta a DeltaDiscoveryRequest. Its
// names and its node are parts of the received message, whose bytes gRPC may
// reuse after free; without free the garbage collector gets them. A request may
// be reused for the next message.
//
// The node, up to 61 KB that may come with every request (E34), is skipped
// unless wantNode is set.
type request struct {
	stream.Request
	delta    bool // set by the receiver, like wantNode
	wantNode bool
	node     []byte // nil: there is none, or it is not wanted
	// malformed is why the message cannot be read; an error from Unmarshal
	// would reach the client as INTERNAL.
	malformed error
	buffer    mem.Buffer
	size      int // bytes of the message
	runs      int // of names
}

// resumes reports whether the client that begins with this request was served
// before.
func (r *request) resumes() bool { return r.Version != "" || r.Initial.Len() > 0 }

// free gives the received bytes back. Names, Unsubscribe, Initial and node must
// not be used any more.
func (r *request) free() {
	if r.buffer != nil {
		r.buffer.Free()
	}
	*r = request{delta: r.delta, wantNode: r.wantNode}
}

// dropNode makes a request independent of the received bytes, unless few of them are its
// node, and gives them back: a first request may wait in line for long. It returns
// how many bytes the request keeps.
func (r *request) dropNode() (size int) {
	if len(r.node) < r.size/4 {
		r.node = nil
		return r.size
	}
	f := r.fields()
	rest := make([]byte, 0, r.size-len(r.node))
	for b := r.buffer.ReadOnlyData(); len(b) > 0; {
		number, _, n := names.Field(b)
		if n < 0 {
			break // decode has read it
		}
		if number != f.node {
			rest = append(rest, b[:n]...)
		}
		b = b[n:]
	}
	r.free()
	r.size = len(rest)
	r.malformed = r.decode(rest)
	return r.size
}

func (r *request) fields() *fields {
	if r.delta {
		return &deltaRequestFields
	}
	return &requestFields
}

// response is a DiscoveryResponse or, if Delta is set, a
// DeltaDiscoveryResponse.
type response struct {
	stream.Response
	identifier string // of the frontend, for Envoy's stats
	label      string // before each version
}

// fields are the numbers of a request's fields; zero: it has no such field.
type fields struct {
	version, node, names, unsubscribe, initial, typeURL, nonce, failure protowire.Number
}

var (
	requestFields      = fields{version: 1, node: 2, names: 3, typeURL: 4, nonce: 5, failure: 6}
	deltaRequestFields = fields{node: 1, typeURL: 2, names: 3, unsubscribe: 4, initial: 5, nonce: 6, failure: 7}
)

// Fields of both responses, of ControlPlane and of google.rpc.Status.
const (
	responseVersion, responseType, responseNonce = 1, 4, 5

	responseControlPlane      = 6
	deltaResponseRemoved      = 6
	deltaResponseControlPlane = 7

	controlPlaneIdentifier = 1
	statusMessage          = 2
)

// Marshal implements encoding.CodecV2.
func (codec) Marshal(v any) (mem.BufferSlice, error) {
	switch v := v.(type) {
	case *response:
		return v.buffers(), nil
	case *sinkResponse:
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

// buffers returns the head, which belongs to this response, and the resources,
// whose slices all streams share that send the same list.
func (r *response) buffers() mem.BufferSlice {
	encode := func() any { return encode(r.Resources, r.Delta, r.Marked, r.label) }
	var resources mem.BufferSlice
	if r.Memo != nil && !r.Marked {
		resources = r.Memo.Do(r.Delta, encode).(mem.BufferSlice)
	} else {
		resources = encode().(mem.BufferSlice)
	}
	return append(append(make(mem.BufferSlice, 0, 1+len(resources)), mem.SliceBuffer(r.head())), resources...)
}

// Slices of less than smallSlice are copied into slices of mergedSlice: grpc
// takes longer to look at one than to copy it.
const (
	smallSlice  = 4 << 10
	mergedSlice = 32 << 10
)

// encode returns the field "resources" of a response.
func encode(resources []*xds.Resource, delta, marked bool, label string) mem.BufferSlice {
	var buffers mem.BufferSlice
	left := 0 // bytes that are to be copied
	for b := range slicesOf(resources, delta, marked, label) {
		if len(b) < smallSlice {
			left += len(b)
		}
	}
	var merged []byte
	flush := func() {
		if len(merged) > 0 {
			buffers = append(buffers, mem.SliceBuffer(merged))
			merged = nil
		}
	}
	for b := range slicesOf(resources, delta, marked, label) {
		switch {
		case len(b) >= smallSlice:
			flush()
			buffers = append(buffers, mem.SliceBuffer(b))
			continue
		case len(merged)+len(b) > cap(merged):
			flush()
			merged = make([]byte, 0, min(left, mergedSlice))
		}
		merged = append(merged, b...)
		left -= len(b)
	}
	flush()
	return buffers
}

// slicesOf yields the slices that resources consist of on the wire.
func slicesOf(resources []*xds.Resource, delta, marked bool, label string) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for _, r := range resources {
			head := r.Head
			switch {
			case marked:
				head = stream.MarkedHead(r)
			case delta:
				head = r.DeltaHead
			}
			if delta && label != "" {
				head = labelled(head, label)
			}
			if !yield(head) {
				return
			}
			for p := range r.Pieces.All() {
				if !yield(p.Value) {
					return
				}
			}
		}
	}
}

func (r *response) head() []byte {
	controlPlane := protowire.Number(responseControlPlane)
	size := len(r.label) + len(r.Version) + len(r.URL()) + len(r.Nonce) + len(r.identifier) + 16
	if r.Delta {
		controlPlane = deltaResponseControlPlane
		for _, name := range r.Removed {
			size += len(name) + 4
		}
	}
	head := make([]byte, 0, size)
	head = appendText(head, responseVersion, r.label+r.Version)
	head = appendText(head, responseType, r.URL())
	head = appendText(head, responseNonce, r.Nonce)
	for _, name := range r.Removed {
		head = appendText(head, deltaResponseRemoved, name)
	}
	return appendControlPlane(head, controlPlane, r.identifier)
}

func appendText(b []byte, field protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), s)
}

// appendControlPlane appends the identifier of the frontend; empty: nothing.
func appendControlPlane(b []byte, field protowire.Number, identifier string) []byte {
	if identifier == "" {
		return b
	}
	b = protowire.AppendTag(b, field, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(protowire.SizeTag(controlPlaneIdentifier)+protowire.SizeBytes(len(identifier))))
	return appendText(b, controlPlaneIdentifier, identifier)
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	pool := c.pool
	if pool == nil {
		pool = mem.DefaultBufferPool()
	}
	b := data.MaterializeToBuffer(pool)
	switch v := v.(type) {
	case *request:
		v.free()
		v.buffer, v.size = b, b.Len()
		v.malformed = v.decode(b.ReadOnlyData())
		return nil
	case proto.Message:
		defer b.Free()
		return proto.Unmarshal(b.ReadOnlyData(), v)
	}
	b.Free()
	return fmt.Errorf("cannot receive a %T", v)
}

func (r *request) decode(b []byte) error {
	f := r.fields()
	for len(b) > 0 {
		n, err := r.decodeNames(f, b)
		if err != nil {
			return err
		}
		switch {
		case n == 0:
			n = r.decodeField(f, b)
		case n > 0:
			r.runs++
		}
		if r.runs > maxRuns {
			return fmt.Errorf("the names in the request are scattered over more than %d places", maxRuns)
		}
		if n < 0 {
			return fmt.Errorf("a request that is no protobuf message: %w", protowire.ParseError(n))
		}
		if r.Names.TooMany() || r.Unsubscribe.TooMany() || r.Initial.TooMany() {
			return fmt.Errorf("a request with more than %d names: let the client import less, or split its configuration over several proxies", names.Max)
		}
		b = b[n:]
	}
	return nil
}

// Limits of a request's names, besides names.Max.
const (
	// maxRuns is how many times names may follow after other fields. Clients send
	// all names of a kind in one run; each further one costs a copy of those before.
	maxRuns = 16
)

// checkNames returns an error for names that no resource can have: one that is not
// valid UTF-8, as protobuf requires, or one that is very long. raw are the bytes
// that all came in. If they are short and valid as a whole, each name is.
func checkNames(raw []byte, all iter.Seq[[]byte]) error {
	if len(raw) <= checkedNames && utf8.Valid(raw) {
		return nil
	}
	for name := range all {
		switch {
		case len(name) > maxName:
			return fmt.Errorf("the request names a resource with %d bytes, the limit is %d", len(name), maxName)
		case !utf8.Valid(name):
			return fmt.Errorf("the request names a resource that is not valid UTF-8: %q", clean(name, maxClientText))
		}
	}
	return nil
}

// decodeNames reads the names at the front of b and returns how many bytes they
// take.
func (r *request) decodeNames(f *fields, b []byte) (int, error) {
	if w, n := names.Scan(b, f.names); n != 0 {
		r.Names = r.Names.Join(w)
		return n, checkNames(b[:max(n, 0)], w.All())
	}
	if !r.delta {
		return 0, nil
	}
	if w, n := names.Scan(b, f.unsubscribe); n != 0 {
		r.Unsubscribe = r.Unsubscribe.Join(w)
		return n, checkNames(b[:max(n, 0)], w.All())
	}
	w, n := names.Scan(b, f.initial)
	versions := names.VersionsIn(w)
	r.Initial = r.Initial.Join(versions)
	return n, checkNames(b[:max(n, 0)], func(yield func([]byte) bool) {
		versions.All()(func(name, _ []byte) bool { return yield(name) })
	})
}

func (r *request) decodeField(f *fields, b []byte) int {
	field, value, n := names.Field(b)
	if value == nil {
		return n
	}
	switch field {
	case f.version:
		r.Version = clean(value, maxClientText)
	case f.node:
		if r.wantNode {
			r.node = value
		}
	case f.typeURL:
		r.TypeURL = typeURL(value)
	case f.nonce:
		r.Nonce = clean(value, maxClientText)
	case f.failure:
		r.Rejected, r.Error = true, errorMessage(value)
	}
	return n
}

// typeURL returns b as a string, without an allocation if the type is known.
func typeURL(b []byte) string {
	for t := range ident.ResourceTypes {
		if url := t.URL(); url == string(b) {
			return url
		}
	}
	return clean(b, maxClientText)
}

// errorMessage returns the message of a google.rpc.Status. It does not use proto,
// which fails if Envoy's message is not valid UTF-8.
func errorMessage(b []byte) string {
	for len(b) > 0 {
		field, value, n := names.Field(b)
		switch {
		case n < 0:
			return ""
		case field == statusMessage && value != nil:
			return clean(value, maxRejection)
		}
		b = b[n:]
	}
	return ""
}
