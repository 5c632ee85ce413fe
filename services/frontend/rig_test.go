package frontend_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	statusv1 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/frontend"
	"meshlog.dev/services/frontend/frontendtest"
	"meshlog.dev/store"
	"meshlog.dev/store/memstore"
)

// waitLimit is how long a test waits for something that must happen.
const waitLimit = 60 * time.Second

// mesh is a world on a chain in memory.
type mesh struct {
	*frontendtest.Mesh
	chain *memstore.Chain
}

func newMesh(t testing.TB) *mesh {
	c := memstore.NewChain()
	return &mesh{frontendtest.NewMesh(t, c), c}
}

// pipes is a listener in memory, so that a test can have a clock of its own.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

// located is a connection from an address.
type located struct {
	net.Conn
	from net.Addr
}

func (c located) RemoteAddr() net.Addr { return c.from }

// dial connects; wrap, if not nil, wraps the client's end.
func (p *pipes) dial(ctx context.Context, wrap func(net.Conn) net.Conn) (net.Conn, error) {
	return p.dialFrom(ctx, p.Addr(), wrap)
}

// dialFrom is dial for a client at an address.
func (p *pipes) dialFrom(ctx context.Context, from net.Addr, wrap func(net.Conn) net.Conn) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- located{server, from}:
		if wrap != nil {
			client = wrap(client)
		}
		return client, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// rig is a running frontend.
type rig struct {
	t       testing.TB
	server  *frontend.Server
	metrics *frontend.Metrics
	pipes   *pipes
	stop    context.CancelFunc
	done    chan error
	changed chan struct{}
}

type option func(*frontend.Config)

func withStore(f *memstore.File) option {
	return func(c *frontend.Config) { c.Store = memstore.Open(f, store.Retention{}) }
}

func withoutChain(c *frontend.Config) { c.Chain, c.Head = nil, nil }

func withLinger(d time.Duration) option {
	return func(c *frontend.Config) { c.Limits.Linger = d }
}

// start runs a frontend on the mesh's chain until the test ends, or stop.
func start(t testing.TB, id string, mesh *mesh, options ...option) *rig {
	t.Helper()
	r := &rig{t: t, metrics: frontend.NewMetrics(), pipes: newPipes(), done: make(chan error, 1), changed: make(chan struct{}, 1)}
	limits := frontend.DefaultLimits()
	limits.Drain = 10 * time.Millisecond
	cfg := frontend.Config{
		ID: id, Build: "test", Listeners: []net.Listener{r.pipes}, Logger: slog.New(slog.DiscardHandler),
		Metrics: r.metrics,
		Store:   memstore.Open(&memstore.File{}, store.Retention{}),
		Chain:   mesh.chain, Head: mesh.chain.Head,
		Limits: limits,
		OnChange: func(bool) {
			select {
			case r.changed <- struct{}{}:
			default:
			}
		},
	}
	for _, o := range options {
		o(&cfg)
	}
	var err error
	if r.server, err = frontend.New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	go func() { r.done <- r.server.Run(ctx) }()
	t.Cleanup(func() { r.end() })
	if mesh.Last().Manifest != nil {
		r.until("a version", func(f *reportv1.FrontendReport) bool { return f.GetServing() != nil })
	}
	return r
}

// end stops the frontend and waits for it.
func (r *rig) end() {
	r.t.Helper()
	r.stop()
	select {
	case err := <-r.done:
		if err != nil {
			r.t.Errorf("Run: %v", err)
		}
		r.done <- nil // for a later call
	case <-time.After(waitLimit):
		r.t.Fatal("Run does not end")
	}
}

// until waits until the frontend's report meets the condition.
func (r *rig) until(what string, is func(*reportv1.FrontendReport) bool) *reportv1.FrontendReport {
	r.t.Helper()
	limit := time.After(waitLimit)
	for {
		if report := r.server.Report(); is(report) {
			return report
		}
		select {
		case <-r.changed:
		case <-limit:
			r.t.Fatalf("never: %s; report: %v", what, r.server.Report())
		}
	}
}

func (r *rig) serves(v ident.Position) {
	r.t.Helper()
	r.until("serving "+v.String(), func(f *reportv1.FrontendReport) bool { return store.VersionOf(f.GetServing()) == v })
}

func (r *rig) persisted() {
	r.t.Helper()
	r.until("persisted", func(f *reportv1.FrontendReport) bool { return f.GetPersisted() })
}

// envoy is a client that behaves like Envoy.
type envoy struct {
	t        testing.TB
	stream   grpc.BidiStreamingClient[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse]
	node     *corev3.Node
	cancel   context.CancelFunc            // ends the stream
	versions map[ident.ResourceType]string // that it has applied
	names    map[ident.ResourceType][]string
}

func node(id, cluster string) *corev3.Node {
	return &corev3.Node{Id: id, Cluster: cluster, UserAgentName: "envoy"}
}

func (r *rig) connect(n *corev3.Node) *envoy {
	r.t.Helper()
	return connect(r.t, r.dial(nil), n)
}

// dial makes a connection; wrap, if not nil, wraps the client's end.
func (r *rig) dial(wrap func(net.Conn) net.Conn) *grpc.ClientConn {
	r.t.Helper()
	return r.dialFrom(r.pipes.Addr(), wrap)
}

// dialFrom is dial for a client at an address.
func (r *rig) dialFrom(from net.Addr, wrap func(net.Conn) net.Conn) *grpc.ClientConn {
	r.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+r.pipes.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)), // as Envoy
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return r.pipes.dialFrom(ctx, from, wrap) }))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// ads is the method of aggregated streams, state of the world.
const ads = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"

func connect(t testing.TB, conn *grpc.ClientConn, n *corev3.Node) *envoy {
	t.Helper()
	return connectTo(t, conn, ads, n)
}

// connectTo opens a stream of a method.
func connectTo(t testing.TB, conn *grpc.ClientConn, method string, n *corev3.Node) *envoy {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return &envoy{
		t: t, stream: open[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse](ctx, t, conn, method), node: n, cancel: cancel,
		versions: map[ident.ResourceType]string{}, names: map[ident.ResourceType][]string{},
	}
}

func open[Request, Response any](ctx context.Context, t testing.TB, conn *grpc.ClientConn, method string) grpc.BidiStreamingClient[Request, Response] {
	t.Helper()
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	return &grpc.GenericClientStream[Request, Response]{ClientStream: s}
}

// reconnect opens another stream of the same Envoy.
func (e *envoy) reconnect(r *rig) *envoy {
	e.t.Helper()
	next := r.connect(e.node)
	next.versions, next.names = e.versions, e.names
	return next
}

// ask sends the first request of a type.
func (e *envoy) ask(t ident.ResourceType, names ...string) {
	e.t.Helper()
	e.names[t] = names
	e.send(&discoveryv3.DiscoveryRequest{TypeUrl: t.URL(), VersionInfo: e.versions[t], ResourceNames: names, Node: e.node})
}

func (e *envoy) send(r *discoveryv3.DiscoveryRequest) {
	e.t.Helper()
	// If the stream has ended, Recv returns the reason.
	if err := e.stream.Send(r); err != nil && !errors.Is(err, io.EOF) {
		e.t.Fatalf("send: %v", err)
	}
}

// receive waits for the next response.
func (e *envoy) receive() *discoveryv3.DiscoveryResponse {
	e.t.Helper()
	r, err := e.stream.Recv()
	if err != nil {
		e.t.Fatalf("receive: %v", err)
	}
	return r
}

// ack ACKs a response; names are the subscription from then on.
func (e *envoy) ack(r *discoveryv3.DiscoveryResponse, names ...string) {
	e.t.Helper()
	t, _ := ident.ResourceTypeOf(r.GetTypeUrl())
	if names != nil {
		e.names[t] = names
	}
	e.versions[t] = r.GetVersionInfo()
	e.send(&discoveryv3.DiscoveryRequest{
		TypeUrl: r.GetTypeUrl(), VersionInfo: r.GetVersionInfo(), ResponseNonce: r.GetNonce(), ResourceNames: e.names[t],
	})
}

func (e *envoy) nack(r *discoveryv3.DiscoveryResponse, message string) {
	e.t.Helper()
	t, _ := ident.ResourceTypeOf(r.GetTypeUrl())
	e.send(&discoveryv3.DiscoveryRequest{
		TypeUrl: r.GetTypeUrl(), VersionInfo: e.versions[t], ResponseNonce: r.GetNonce(), ResourceNames: e.names[t],
		ErrorDetail: &statusv1.Status{Code: 13, Message: message},
	})
}

// expect receives a response of a type that holds these names, and returns it.
func (e *envoy) expect(t ident.ResourceType, names ...string) *discoveryv3.DiscoveryResponse {
	e.t.Helper()
	r := e.receive()
	if diff := cmp.Diff(fmt.Sprintf("%s %v", t, names), describe(r)); diff != "" {
		e.t.Fatalf("response (-want +got):\n%s", diff)
	}
	return r
}

func describe(r *discoveryv3.DiscoveryResponse) string {
	t, _ := ident.ResourceTypeOf(r.GetTypeUrl())
	names := []string{}
	for _, a := range r.GetResources() {
		m, err := a.UnmarshalNew()
		if err != nil {
			return err.Error()
		}
		for _, field := range []string{"name", "cluster_name"} {
			fields := m.ProtoReflect().Descriptor().Fields()
			for i := range fields.Len() {
				if string(fields.Get(i).Name()) == field {
					names = append(names, m.ProtoReflect().Get(fields.Get(i)).String())
				}
			}
		}
	}
	slices.Sort(names)
	return strings.TrimSpace(fmt.Sprintf("%s %v", t, names))
}

// boot brings a new Envoy to where it has one listener with its routes.
func (e *envoy) boot(clusters, endpoints []string, listener, routes string) {
	e.t.Helper()
	e.ask(ident.CDS)
	e.ack(e.expect(ident.CDS, clusters...))
	e.ask(ident.EDS, endpoints...)
	e.ack(e.expect(ident.EDS, endpoints...))
	e.ask(ident.LDS)
	e.ack(e.expect(ident.LDS, listener))
	e.ask(ident.RDS, routes)
	e.ack(e.expect(ident.RDS, routes))
}

// withHead makes the frontend ask another mesh's chain for the head.
func withHead(m *mesh) option {
	return func(c *frontend.Config) { c.Head = m.chain.Head }
}
