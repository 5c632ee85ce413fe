package frontend_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // what a client may ask for
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	grpcmetadata "google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/frontend"
)

// rawCodec sends bytes as they are, so that a client can send what protobuf would
// refuse to encode.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

var _ encoding.CodecV2 = rawCodec{}

// rawStream is a stream of a client that chooses its bytes.
type rawStream struct {
	t testing.TB
	grpc.ClientStream
}

func openRaw(t testing.TB, conn *grpc.ClientConn, method string, options ...grpc.CallOption) rawStream {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method,
		append(options, grpc.ForceCodecV2(rawCodec{}), grpc.WaitForReady(true), grpc.MaxCallSendMsgSize(1<<30))...)
	if err != nil {
		t.Fatal(err)
	}
	return rawStream{t, s}
}

// send sends a message. It returns false if the stream has ended.
func (s rawStream) send(b []byte) bool { return s.SendMsg(&b) == nil }

// ended returns the error with which the stream ends.
func (s rawStream) ended() error {
	for {
		var b []byte
		if err := s.RecvMsg(&b); err != nil {
			return err
		}
	}
}

// field appends a field to a message.
func field(b []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), value)
}

// rawRequest returns a DiscoveryRequest for CDS with a node, and further fields.
func rawRequest(node []byte, fields ...[]byte) []byte {
	b := field(field(nil, 2, node), 4, []byte(ident.CDS.URL()))
	for _, f := range fields {
		b = append(b, f...)
	}
	return b
}

// rawNode returns a Node with an id and further fields.
func rawNode(fields ...[]byte) []byte {
	b := field(nil, 1, []byte("bad"))
	for _, f := range fields {
		b = append(b, f...)
	}
	return b
}

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// texts returns metadata with one text of a size.
func texts(size int) *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{"TEXT": structpb.NewStringValue(strings.Repeat("x", size))}}
}

// nested returns metadata that is nested that deep.
func nested(depth int) *structpb.Struct {
	v := structpb.NewNullValue()
	for range depth {
		v = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{v}})
	}
	return &structpb.Struct{Fields: map[string]*structpb.Value{"DEEP": v}}
}

// What is too large in a request, or is no text, ends its stream with the reason
// (XDS-1, XDS-4).
func TestRequestIsRefused(t *testing.T) {
	const metadata, names = 3, 3
	longest := texts(64<<10 - 32)
	var scattered []byte
	for range 100 {
		scattered = field(field(scattered, names, []byte("a")), 1, []byte("v"))
	}
	many := []byte(strings.Repeat("\x1a\x01n", 250_001))
	for name, c := range map[string]struct {
		request []byte
		delta   bool
		options []grpc.CallOption
		code    codes.Code
		want    string
	}{
		"the largest metadata":              {request: rawRequest(rawNode(field(nil, metadata, marshal(t, longest)))), code: codes.OK},
		"larger metadata":                   {request: rawRequest(rawNode(field(nil, metadata, marshal(t, texts(64<<10))))), code: codes.InvalidArgument, want: "node.metadata has more than 64 KiB"},
		"larger metadata in pieces":         {request: rawRequest(rawNode(field(nil, metadata, marshal(t, longest)), field(nil, metadata, marshal(t, longest)))), code: codes.InvalidArgument, want: "node.metadata has more than 64 KiB"},
		"extensions, which are not kept":    {request: rawRequest(rawNode([]byte(strings.Repeat(string(field(nil, 9, make([]byte, 1000))), 1000)))), code: codes.OK},
		"metadata of many values":           {request: rawRequest(rawNode(field(nil, metadata, field(nil, 1, field(field(nil, 1, []byte("k")), 2, field(nil, 6, []byte(strings.Repeat("\x0a\x02\x08\x00", 15_000)))))))), code: codes.OK},
		"deep metadata":                     {request: rawRequest(rawNode(field(nil, metadata, marshal(t, nested(200))))), code: codes.InvalidArgument, want: "node.metadata cannot be read"},
		"a long id":                         {request: rawRequest(field(nil, 1, make([]byte, 1025))), code: codes.InvalidArgument, want: "node.id has 1025 bytes, the limit is 1024"},
		"an id that is not UTF-8":           {request: rawRequest(field(nil, 1, []byte("\xff"))), code: codes.InvalidArgument, want: "node.id is not valid UTF-8"},
		"a long cluster":                    {request: rawRequest(rawNode(field(nil, 2, make([]byte, 1<<20)))), code: codes.InvalidArgument, want: "node.cluster has 1048576 bytes"},
		"a long namespace":                  {request: rawRequest(rawNode(field(nil, metadata, marshal(t, &structpb.Struct{Fields: map[string]*structpb.Value{"NAMESPACE": structpb.NewStringValue(strings.Repeat("n", 2000))}})))), code: codes.InvalidArgument, want: "node.metadata.NAMESPACE has 2000 bytes"},
		"a user agent that is not UTF-8":    {request: rawRequest(rawNode(field(nil, 6, []byte("\xff")))), code: codes.OK},
		"a long user agent":                 {request: rawRequest(rawNode(field(nil, 6, make([]byte, 2<<20)))), code: codes.OK},
		"a name that is not UTF-8":          {request: rawRequest(rawNode(), field(nil, names, []byte("ok")), field(nil, names, []byte("\xff"))), code: codes.InvalidArgument, want: `a resource that is not valid UTF-8: "` + "\uFFFD"},
		"a long name":                       {request: rawRequest(rawNode(), field(nil, names, make([]byte, 100_000))), code: codes.InvalidArgument, want: "names a resource with 100000 bytes, the limit is 4096"},
		"a name of delta that is not UTF-8": {request: field(field(field(nil, 1, rawNode()), 2, []byte(ident.CDS.URL())), 5, field(nil, 1, []byte("\xff"))), delta: true, code: codes.InvalidArgument, want: "not valid UTF-8"},
		"too many names":                    {request: rawRequest(rawNode(), many), code: codes.InvalidArgument, want: "a request with more than 250000 names: let the client import less, or split its configuration over several proxies"},
		"scattered names":                   {request: rawRequest(rawNode(), scattered), code: codes.InvalidArgument, want: "scattered over more than 16 places"},
		"a version that is not UTF-8":       {request: rawRequest(rawNode(), field(nil, 1, []byte("\xff"))), code: codes.OK},
		"compressed":                        {request: rawRequest(rawNode()), options: []grpc.CallOption{grpc.UseCompressor("gzip")}, code: codes.Unimplemented, want: "compressed requests are not accepted"},
		"more than the largest request":     {request: make([]byte, 65<<20), code: codes.ResourceExhausted, want: "larger than max"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, "f1", shop(t))
				defer f.end()
				method := ads
				if c.delta {
					method = strings.Replace(ads, "Stream", "Delta", 1)
				}
				conn := f.dial(nil)
				defer conn.Close()
				s := openRaw(t, conn, method, c.options...)
				s.send(c.request)
				var b []byte
				err := s.RecvMsg(&b)
				if status.Code(err) != c.code || !strings.Contains(status.Convert(err).Message(), c.want) {
					t.Fatalf("got %v, want %v %q", err, c.code, c.want)
				}
				synctest.Wait()
				if n := f.counted("meshlog_frontend_requests_refused_total"); (n == 1) != (c.code != codes.OK) {
					t.Errorf("%v refused requests are counted", n)
				}
				// A report can be sent, whatever the client said.
				if _, err := proto.Marshal(f.server.Report()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// What a client says is shown as text, and is cut (XDS-4).
func TestTextsOfClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, "f1", shop(t))
		conn := f.dial(nil)
		s := openRaw(t, conn, ads)
		s.send(rawRequest(rawNode(field(nil, 6, []byte("agent\xff"+strings.Repeat("x", 2<<20))))))
		var b []byte
		if err := s.RecvMsg(&b); err != nil {
			t.Fatal(err)
		}
		var r discoveryv3.DiscoveryResponse
		if err := proto.Unmarshal(b, &r); err != nil {
			t.Fatal(err)
		}
		// A NACK whose message names a resource, and then is no text.
		s.send(field(field(field(nil, 4, []byte(ident.CDS.URL())), 5, []byte(r.GetNonce())),
			6, field(nil, 2, []byte("bad cluster v1: \xff\xfe"+strings.Repeat("y", 1<<20)))))
		report := f.until("a rejection", func(r *reportv1.FrontendReport) bool { return len(r.GetVerdicts()) > 0 })
		wire, err := proto.Marshal(report)
		if err != nil {
			t.Fatal(err)
		}
		v := report.GetVerdicts()[0]
		if v.GetName() != "v1" || !strings.HasPrefix(v.GetClient(), "agent\uFFFDxxx") || !strings.Contains(v.GetMessage(), "v1: \uFFFD") {
			t.Errorf("the verdict: %v", v)
		}
		if len(wire) > 16<<10 {
			t.Errorf("the report has %d bytes", len(wire))
		}
	})
}

// Proxies with equal metadata share it (XDS-1).
func TestMetadataIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, "f1", shop(t))
		join := func(id string, m *structpb.Struct) *envoy {
			n := node(id, "web")
			n.Metadata = m
			e := f.connect(n)
			e.ask(ident.CDS)
			e.expect(ident.CDS, "v1")
			return e
		}
		const metric = "meshlog_frontend_metadata_bytes"
		one := join("one", texts(50_000))
		size := f.counted(metric)
		two := join("two", texts(50_000))
		if f.counted(metric) != size || size < 50_000 {
			t.Errorf("metadata of two proxies takes %v bytes, of one %v", f.counted(metric), size)
		}
		other := join("other", texts(40_000))
		one.cancel()
		synctest.Wait()
		if got := f.counted(metric); got < size+40_000 {
			t.Errorf("metadata of the others takes %v bytes", got)
		}
		two.cancel()
		other.cancel()
		synctest.Wait()
		if got := f.counted(metric); got != 0 {
			t.Errorf("metadata of no proxy takes %v bytes", got)
		}
	})
}

// The proxies behind one address have a share of the memory for metadata (XDS-1).
func TestMetadataOfAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, "f1", shop(t), withLimits(func(l *frontend.Limits) { l.StreamsPerAddress = 4 })) // 128 KiB
		for i, want := range []codes.Code{codes.OK, codes.OK, codes.Unavailable} {
			n := node(fmt.Sprint("web-", i), "web")
			n.Metadata = texts(60_000 + i)
			e := f.connect(n)
			e.ask(ident.CDS)
			if _, err := e.stream.Recv(); status.Code(err) != want {
				t.Errorf("proxy %d: %v, want %v", i, err, want)
			}
		}
		if got := f.counted("meshlog_frontend_streams_refused_total"); got != 1 {
			t.Errorf("%v refusals are counted, want 1", got)
		}
	})
}

// Streams on which nothing comes are counted, and end (XDS-2).
func TestSilentStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, "f1", shop(t), withLimits(func(l *frontend.Limits) { l.StreamsPerAddress = 20 }))
		conn := f.dial(nil)
		began := time.Now()
		var streams []rawStream
		for range 25 {
			streams = append(streams, openRaw(t, conn, ads))
		}
		synctest.Wait()
		if got := f.counted("meshlog_frontend_streams_opening"); got != 20 {
			t.Errorf("%v streams without a request are counted, want 20", got)
		}
		silent := 0
		for _, s := range streams {
			err := s.ended()
			if status.Code(err) != codes.Unavailable {
				t.Errorf("got %v, want UNAVAILABLE", err)
			}
			if strings.Contains(err.Error(), "no request came within 5s") {
				silent++
			} else if !strings.Contains(err.Error(), "has 20 streams already") {
				t.Errorf("got %v", err)
			}
		}
		if took := time.Since(began); silent != 20 || took != 5*time.Second {
			t.Errorf("%d streams ended because of silence, the last one after %s", silent, took)
		}
		if got := f.counted("meshlog_frontend_streams_silent_total"); got != 20 {
			t.Errorf("%v are counted", got)
		}
		e := f.connect(node("web-1", "web"))
		e.ask(ident.CDS)
		e.expect(ident.CDS, "v1")
	})
}

// slowConn sends one piece a second.
type slowConn struct {
	net.Conn
	slow *atomic.Bool
}

func (c *slowConn) Write(b []byte) (n int, err error) {
	for len(b) > 0 && err == nil {
		piece := b
		if c.slow.Load() {
			<-time.After(time.Second)
			piece = b[:min(len(b), 10_000)]
		}
		var m int
		m, err = c.Conn.Write(piece)
		n, b = n+m, b[m:]
	}
	return n, err
}

// A first request that takes longer than 5 s to arrive is waited for (XDS-2).
func TestSlowFirstRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, "f1", shop(t))
		var slow atomic.Bool
		conn := f.dial(func(c net.Conn) net.Conn { return &slowConn{c, &slow} })
		s := openRaw(t, conn, ads)
		synctest.Wait()
		slow.Store(true)
		began := time.Now()
		go s.send(rawRequest(rawNode(field(nil, 9, make([]byte, 100_000)))))
		var b []byte
		if err := s.RecvMsg(&b); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 8*time.Second {
			t.Errorf("the request took %s", took)
		}
	})
}

// One client cannot have all streams: they are limited by address and by identity,
// and so are its connections (XDS-2).
func TestStreamsOfOneClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, "f1", shop(t), withLimits(func(l *frontend.Limits) { l.StreamsPerAddress = 3 }))
		conn := f.dial(nil)
		var open []*envoy
		for i := range 4 {
			e := connect(t, conn, node(fmt.Sprint("web-", i), "web"))
			e.ask(ident.CDS)
			_, err := e.stream.Recv()
			if i < 3 {
				open = append(open, e)
			}
			if (i < 3) != (err == nil) || i == 3 && (status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "has 3 streams already")) {
				t.Errorf("stream %d: %v", i, err)
			}
		}
		open[0].cancel()
		synctest.Wait()
		e := connect(t, conn, node("web-9", "web"))
		e.ask(ident.CDS)
		e.expect(ident.CDS, "v1")

		// Two further connections are taken, the next one is closed.
		for range 2 {
			c, err := f.pipes.dial(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
		}
		c, err := f.pipes.dial(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("a fourth connection is taken")
		}
		if got := f.counted("meshlog_frontend_streams_refused_total"); got != 2 {
			t.Errorf("%v refusals are counted, want 2", got)
		}
	})
}

// Methods that are called with one request are limited like streams: gRPC would
// receive their requests whole, counted for no stream (XDS-1, XDS-2).
func TestOtherMethodsAreLimited(t *testing.T) {
	const check, watch = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
	synctest.Test(t, func(t *testing.T) {
		f := start(t, "f1", shop(t), withLimits(func(l *frontend.Limits) { l.StreamsPerAddress = 5 }))
		conn := f.dial(nil)
		if err := openRaw(t, conn, fmt.Sprintf(perType[ident.CDS], "Fetch")).ended(); status.Code(err) != codes.Unimplemented {
			t.Errorf("polling, before a request has come: %v", err)
		}
		// A request of the health service is under way until its stream ends, except for
		// what came before the stream was counted: 64 KiB at most.
		s := openRaw(t, conn, watch)
		s.send(field(nil, 1, make([]byte, 1<<20)))
		synctest.Wait()
		if got := f.counted("meshlog_frontend_request_bytes"); got < 2*(1<<20-64<<10) {
			t.Errorf("a request of 1 MiB counts for %v bytes", got)
		}
		for range 4 {
			openRaw(t, conn, watch)
		}
		synctest.Wait()
		for _, method := range []string{check, watch, ads} {
			if err := openRaw(t, conn, method).ended(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "has 5 streams already") {
				t.Errorf("%s: %v", method, err)
			}
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := start(t, "f1", shop(t))
		conn := f.dial(nil)
		client := healthv1.NewHealthClient(conn)
		if r, err := client.Check(t.Context(), &healthv1.HealthCheckRequest{}); err != nil || r.GetStatus() != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("check: %v, %v", r, err)
		}
		if r, err := client.List(t.Context(), &healthv1.HealthListRequest{}); err != nil || len(r.GetStatuses()) == 0 {
			t.Errorf("list: %v, %v", r, err)
		}
		w, err := client.Watch(t.Context(), &healthv1.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if r, err := w.Recv(); err != nil || r.GetStatus() != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("watch: %v, %v", r, err)
		}
	})
}

// Streams that are refused leave nothing under way: not on a connection with others,
// nor when their clients come back again and again, each time with a request (XDS-1).
func TestRefusedRequestsAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, "f1", shop(t), withLimits(func(l *frontend.Limits) { l.StreamsPerAddress = 2 }))
		under := func() float64 {
			synctest.Wait()
			return f.counted("meshlog_frontend_request_bytes")
		}
		conn := f.dial(nil)
		good := connect(t, conn, node("web-1", "web"))
		good.ask(ident.CDS)
		good.ack(good.expect(ident.CDS, "v1"))
		bad := openRaw(t, conn, ads)
		bad.send(rawRequest(rawNode(), field(nil, 3, append(make([]byte, 1<<20), 0xff))))
		if err := bad.ended(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("got %v", err)
		}
		if got := under(); got != 0 {
			t.Errorf("after a stream was refused, %v bytes are under way", got)
		}
		second := connect(t, conn, node("web-2", "web"))
		second.ask(ident.CDS)
		second.ack(second.expect(ident.CDS, "v1"))
		again := f.dial(nil)
		for range 100 {
			s := openRaw(t, again, ads)
			s.send(rawRequest(rawNode(field(nil, 9, make([]byte, 50_000)))))
			if err := s.ended(); status.Code(err) != codes.Unavailable {
				t.Errorf("got %v", err)
			}
			synctest.Wait()
		}
		if got := under(); got > 2*51_000 {
			t.Errorf("after a client was refused 100 times, %v bytes are under way", got)
		}
	})
}

// The headers of a stream have a limit: gRPC keeps them as long as the stream, and takes
// 16 MB unless told otherwise (XDS-1).
func TestHeadersAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, "f1", shop(t))
		conn := f.dial(nil)
		e := connect(t, conn, node("web-1", "web")) // the client learns the limit
		e.ask(ident.CDS)
		e.expect(ident.CDS, "v1")
		ctx := grpcmetadata.AppendToOutgoingContext(t.Context(), "x", strings.Repeat("y", 64<<10))
		s, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, ads)
		if err == nil {
			err = rawStream{t, s}.ended()
		}
		if err == nil || !strings.Contains(err.Error(), "header list size") {
			t.Errorf("headers of 64 KiB: %v", err)
		}
	})
}
