package floor

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/pprof"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Script holds the responses of a server: for each type the resources of the
// first answer and of a change, encoded as fields of a response.
type Script struct {
	First, Change map[string][]byte // by type URL
}

// Serve answers ADS streams, of state of the world and of delta, with the same
// slices for all of them. It reads no node, no name and no version. PUT
// /change?type=URL on the second listener writes the change of a type to every
// stream that has asked for it; /debug/pprof/ is there too. Serve returns when
// ctx ends, and closes the listeners.
func Serve(ctx context.Context, xds, admin net.Listener, s Script) error {
	f := &server{script: s, streams: map[*stream]struct{}{}}
	g := grpc.NewServer(
		grpc.ForceServerCodecV2(codec{}), grpc.MaxSendMsgSize(math.MaxInt32), grpc.MaxRecvMsgSize(64<<20),
		grpc.UnknownServiceHandler(f.serve),
	)
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /change", f.change)
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	h := &http.Server{Handler: mux}

	defer context.AfterFunc(ctx, func() {
		g.Stop()
		h.Close()
	})()
	errs := make(chan error, 2)
	go func() { errs <- g.Serve(xds) }()   // ends by g.Stop
	go func() { errs <- h.Serve(admin) }() // ends by h.Close
	err := <-errs
	g.Stop()
	h.Close()
	err = errors.Join(err, <-errs)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

type server struct {
	script Script

	mu      sync.Mutex
	streams map[*stream]struct{}
	changes int
}

// stream is one client; its handler writes.
type stream struct {
	out   chan mem.BufferSlice
	asked map[string]bool // guarded by server.mu
}

// pending is how many responses may wait for a stream before the server blocks.
const pending = 8

// serve runs a stream, of either method.
func (f *server) serve(_ any, gs grpc.ServerStream) error {
	st := &stream{out: make(chan mem.BufferSlice, pending), asked: map[string]bool{}}
	f.mu.Lock()
	f.streams[st] = struct{}{}
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.streams, st)
		f.mu.Unlock()
	}()

	received := make(chan error, 1)
	go func() { received <- f.receive(gs, st) }() // ends with the stream, which ends when serve returns
	for {
		select {
		case r := <-st.out:
			if err := gs.SendMsg(r); err != nil {
				return err
			}
		case err := <-received:
			return err
		}
	}
}

// receive answers the first request of each type. Later requests are ACKs: once
// all types were asked for, receive does not decode requests.
func (f *server) receive(gs grpc.ServerStream, st *stream) error {
	typeField := protowire.Number(requestTypeSotW)
	if method, _ := grpc.MethodFromServerStream(gs); strings.HasSuffix(method, "/DeltaAggregatedResources") {
		typeField = requestTypeDelta
	}
	for {
		f.mu.Lock()
		r := request{field: typeField, ignore: len(st.asked) == len(f.script.First)}
		f.mu.Unlock()
		if err := gs.RecvMsg(&r); err != nil {
			return err
		}
		if r.ignore {
			continue
		}
		f.mu.Lock()
		first := !st.asked[r.typeURL]
		st.asked[r.typeURL] = true
		f.mu.Unlock()
		if first {
			st.out <- respond(r.typeURL, "first", f.script.First[r.typeURL])
		}
	}
}

// change writes a change to every stream.
func (f *server) change(w http.ResponseWriter, r *http.Request) {
	typeURL := r.FormValue("type")
	resources, ok := f.script.Change[typeURL]
	if !ok {
		http.Error(w, fmt.Sprintf("no change of type %q", typeURL), http.StatusNotFound)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changes++
	out := respond(typeURL, strconv.Itoa(f.changes), resources)
	for st := range f.streams {
		if st.asked[typeURL] {
			st.out <- out
		}
	}
}

// Fields of a response, and of requests of both variants.
const (
	responseVersion, responseType, responseNonce = 1, 4, 5
	requestTypeSotW, requestTypeDelta            = 4, 2
)

func respond(typeURL, version string, resources []byte) mem.BufferSlice {
	var head []byte
	text := func(field protowire.Number, s string) {
		head = protowire.AppendTag(head, field, protowire.BytesType)
		head = protowire.AppendString(head, s)
	}
	text(responseVersion, version)
	text(responseType, typeURL)
	text(responseNonce, version)
	return mem.BufferSlice{mem.SliceBuffer(head), mem.SliceBuffer(resources)}
}

// request holds the type of a request, or nothing.
type request struct {
	ignore  bool
	field   protowire.Number // the field that holds the type
	typeURL string
}

// codec writes slices as they are, and reads only the type of a request.
type codec struct{}

var _ encoding.CodecV2 = codec{}

// Name implements encoding.CodecV2.
func (codec) Name() string { return "proto" }

// Marshal implements encoding.CodecV2.
func (codec) Marshal(v any) (mem.BufferSlice, error) { return v.(mem.BufferSlice), nil }

// Unmarshal implements encoding.CodecV2.
func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	r := v.(*request)
	if r.ignore {
		return nil
	}
	buffer := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buffer.Free()
	for b := buffer.ReadOnlyData(); len(b) > 0; {
		field, wire, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		m := protowire.ConsumeFieldValue(field, wire, b[n:])
		if m < 0 {
			return protowire.ParseError(m)
		}
		if field == r.field && wire == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(b[n:])
			r.typeURL = string(value)
		}
		b = b[n+m:]
	}
	return nil
}
