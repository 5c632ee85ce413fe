package frontend_test

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv1 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/deploy/testkit/certtest"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/frontend"
	"meshlog.dev/services/internal/certificates"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/store"
)

const (
	entriesType = "networking.istio.io/v1/ServiceEntry"
	routesType  = "networking.istio.io/v1/VirtualService"
)

// withSinks makes the frontend take sinks at a listener.
func withSinks(t *testing.T) (net.Listener, option) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l, func(c *frontend.Config) { c.SinkListeners = []net.Listener{l} }
}

// adsc is a client that behaves as istiod's: its first requests have the time as a nonce, the
// node comes once, and it ACKs everything.
type adsc struct {
	t      *testing.T
	stream grpc.BidiStreamingClient[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse]
	node   *corev3.Node
}

func apiNode(namespace string) *corev3.Node {
	return &corev3.Node{
		Id: "sidecar~10.0.0.1~istiod-1." + namespace + "~" + namespace + ".svc.cluster.local",
		Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{
			"GENERATOR": structpb.NewStringValue("api"), "NAMESPACE": structpb.NewStringValue(namespace),
		}},
	}
}

func dialSinks(t *testing.T, l net.Listener, of credentials.TransportCredentials) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(of))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func newADSC(t *testing.T, conn *grpc.ClientConn, node *corev3.Node, types ...string) *adsc {
	t.Helper()
	a := &adsc{t: t, stream: open[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse](t.Context(), t, conn, ads), node: node}
	for _, url := range types {
		a.send(&discoveryv3.DiscoveryRequest{TypeUrl: url, ResponseNonce: time.Now().String()})
	}
	return a
}

func (a *adsc) send(r *discoveryv3.DiscoveryRequest) {
	a.t.Helper()
	r.Node, a.node = a.node, nil
	_ = a.stream.Send(r) // Recv says why it has ended
}

// receive returns the next response, without an answer.
func (a *adsc) receive() *discoveryv3.DiscoveryResponse {
	a.t.Helper()
	r, err := a.stream.Recv()
	if err != nil {
		a.t.Fatal(err)
	}
	return r
}

func (a *adsc) ack(r *discoveryv3.DiscoveryResponse) *discoveryv3.DiscoveryResponse {
	a.send(&discoveryv3.DiscoveryRequest{TypeUrl: r.GetTypeUrl(), VersionInfo: r.GetVersionInfo(), ResponseNonce: r.GetNonce()})
	return r
}

// ends returns why the stream ends.
func (a *adsc) ends() error {
	for {
		if _, err := a.stream.Recv(); err != nil {
			return err
		}
	}
}

func sinkPolicy(sinks ...*configv1.McpSink) meshtest.Change {
	return meshtest.Object("MeshPolicy", "", "default", &configv1.MeshPolicy{Mcp: &configv1.Mcp{Sinks: sinks}})
}

func sinkEntry(host string) meshtest.Change {
	return meshtest.Object("ServiceEntry", "shop", "web", &networking.ServiceEntry{
		Hosts: []string{host}, Resolution: networking.ServiceEntry_STATIC, Ports: []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
	})
}

func sinkRoute(host string) meshtest.Change {
	return meshtest.Object("VirtualService", "shop", "web", &networking.VirtualService{Hosts: []string{host}})
}

// MCP-6, MCP-7, MCP-13, MCP-14: a client that behaves as istiod's gets one answer to each type of
// Istio, and then only what has changed; two frontends send it the same bytes, and so do both
// after a reconnect. Its ACKs and a NACK are in the report.
func TestSink(t *testing.T) {
	m := newMesh(t)
	m.Publish(sinkPolicy(&configv1.McpSink{}), sinkEntry("a.example"), sinkRoute("a.example"))
	var types []string
	for _, k := range kind.Istio() {
		types = append(types, k.Group+"/"+k.Versions[0]+"/"+k.DocumentKind())
	}
	types = append(types, "core/v1alpha1/MeshConfig")
	read := func(a *adsc) map[string]*discoveryv3.DiscoveryResponse {
		got := map[string]*discoveryv3.DiscoveryResponse{}
		for range types {
			r := a.ack(a.receive())
			if got[r.GetTypeUrl()] != nil {
				t.Errorf("%s was answered twice", r.GetTypeUrl())
			}
			got[r.GetTypeUrl()] = r
		}
		return got
	}
	l1, sinks1 := withSinks(t)
	l2, sinks2 := withSinks(t)
	f := start(t, "f1", m, sinks1)
	start(t, "f2", m, sinks2)
	conn := dialSinks(t, l1, insecure.NewCredentials())
	one := newADSC(t, conn, apiNode("istio-system"), types...)
	all := []map[string]*discoveryv3.DiscoveryResponse{
		read(one), read(newADSC(t, dialSinks(t, l2, insecure.NewCredentials()), apiNode("istio-system"), types...)),
		read(newADSC(t, conn, apiNode("istio-system"), types...)),
	}
	for _, url := range types {
		first := all[0][url]
		for _, other := range all[1:] {
			r := other[url]
			r.Nonce, r.ControlPlane = first.GetNonce(), first.GetControlPlane()
			if !proto.Equal(r, first) {
				t.Errorf("%s: one frontend sends %v, the other %v", url, first, r)
			}
		}
		if want := map[string]int{entriesType: 1, routesType: 1}[url]; len(first.GetResources()) != want {
			t.Errorf("%s has %d resources, want %d", url, len(first.GetResources()), want)
		}
	}

	v := m.Publish(sinkRoute("b.example"))
	r := one.receive()
	if r.GetTypeUrl() != routesType || r.GetVersionInfo() == all[0][routesType].GetVersionInfo() {
		t.Errorf("a new route sends %s %s", r.GetTypeUrl(), r.GetVersionInfo())
	}
	one.send(&discoveryv3.DiscoveryRequest{
		TypeUrl: routesType, VersionInfo: all[0][routesType].GetVersionInfo(), ResponseNonce: r.GetNonce(),
		ErrorDetail: &statusv1.Status{Code: int32(codes.InvalidArgument), Message: "no such host"},
	})
	report := f.until("a NACK of one client, and an ACK of the version in other types", func(r *reportv1.FrontendReport) bool {
		nacks := 0
		for _, sink := range r.GetSinks() {
			for _, x := range sink.GetTypes() {
				switch {
				case x.GetTypeUrl() == routesType && x.GetNack().GetMessage() == "no such host":
					nacks++
				case x.GetTypeUrl() == entriesType && store.VersionOf(x.GetAcked()) != v:
					return false
				}
			}
		}
		return nacks == 1 && len(r.GetSinks()) == 2
	})
	if sink := report.GetSinks()[0]; sink.GetType() != "sink" || sink.GetNamespace() != "istio-system" || report.GetStreams() != 0 {
		t.Errorf("the report has %v and %d streams of proxies", sink, report.GetStreams())
	}
	m.Publish(sinkRoute("c.example"))
	if r := one.ack(one.receive()); r.GetTypeUrl() != routesType {
		t.Errorf("after the NACK a new route sends %s", r.GetTypeUrl())
	}
}

// MCP-6, MCP-16: sinks are refused on the port of proxies, proxies on the port of sinks, and so
// are other protocols there, a client that no entry of the MeshPolicy is for, and one that names
// resources.
func TestRefusedSinks(t *testing.T) {
	m := newMesh(t)
	m.Publish(sinkPolicy(&configv1.McpSink{NodeNamespace: "istio-system"}), sinkEntry("a.example"))
	l, sinks := withSinks(t)
	f := start(t, "f1", m, sinks)
	conn := dialSinks(t, l, insecure.NewCredentials())
	const (
		delta     = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
		nativeMCP = "/istio.mcp.v1alpha1.ResourceSource/EstablishResourceStream" // MCP-8, MCP-9, MCP-17
	)
	for _, test := range []struct {
		name   string
		conn   *grpc.ClientConn
		method string
		node   *corev3.Node
		names  []string
		code   codes.Code
		says   string
	}{
		{"a sink on the port of proxies", f.dial(nil), ads, apiNode("istio-system"), nil, codes.PermissionDenied, "--mcp-listen"},
		{"a proxy on the port of sinks", conn, ads, node("web-1", "web"), nil, codes.PermissionDenied, "GENERATOR"},
		{"delta", conn, delta, apiNode("istio-system"), nil, codes.Unimplemented, "state of the world"},
		{"one type", conn, "/envoy.service.cluster.v3.ClusterDiscoveryService/StreamClusters", apiNode("istio-system"), nil, codes.Unimplemented, "state of the world"},
		{"native MCP", conn, nativeMCP, apiNode("istio-system"), nil, codes.Unimplemented, "unknown service"},
		{"native MCP on the port of proxies", f.dial(nil), nativeMCP, apiNode("istio-system"), nil, codes.Unimplemented, "unknown service"},
		{"another namespace", conn, ads, apiNode("default"), nil, codes.PermissionDenied, "mcp.sinks"},
		{"names", conn, ads, apiNode("istio-system"), []string{"a"}, codes.InvalidArgument, "names resources"},
	} {
		a := &adsc{t: t, stream: open[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse](t.Context(), t, test.conn, test.method), node: test.node}
		a.send(&discoveryv3.DiscoveryRequest{TypeUrl: entriesType, ResourceNames: test.names})
		if err := a.ends(); status.Code(err) != test.code || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, want %s with %q", test.name, err, test.code, test.says)
		}
	}

	a := newADSC(t, conn, apiNode("istio-system"), entriesType)
	a.ack(a.receive())
	m.Publish(sinkPolicy())
	if err := a.ends(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a stream whose entry is gone ends with %v", err)
	}
}

// A frontend has 32 streams of sinks from one address, and streams end when it stops.
func TestSinkLimits(t *testing.T) {
	m := newMesh(t)
	m.Publish(sinkPolicy(&configv1.McpSink{}), sinkEntry("a.example"))
	l, sinks := withSinks(t)
	f := start(t, "f1", m, sinks)
	conn := dialSinks(t, l, insecure.NewCredentials())
	var last *adsc
	for range 32 {
		last = newADSC(t, conn, apiNode("istio-system"), entriesType)
		last.ack(last.receive())
	}
	if err := newADSC(t, conn, apiNode("istio-system"), entriesType).ends(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "32") {
		t.Errorf("one more stream ends with %v", err)
	}
	f.end()
	if err := last.ends(); status.Code(err) != codes.Unavailable {
		t.Errorf("a stream of a frontend that stops ends with %v", err)
	}
}

// MCP-6: with a client CA the port takes only clients that show a certificate, and one with an
// identity of the mesh must be in its namespace.
func TestSinkCertificates(t *testing.T) {
	m := newMesh(t)
	m.Publish(sinkPolicy(&configv1.McpSink{}), sinkEntry("a.example"))
	ca := certtest.NewCA("mesh")
	dir := t.TempDir()
	cert, key := ca.Server("mcp", time.Now().Add(time.Hour)).Write(t, dir, "server")
	certs, err := certificates.Load(certificates.Files{Cert: cert, Key: key, ClientCA: certtest.WriteFile(t, dir, "ca.pem", ca.PEM())})
	if err != nil {
		t.Fatal(err)
	}
	l, sinks := withSinks(t)
	start(t, "f1", m, sinks, func(c *frontend.Config) { c.SinkTLS = certs.Config() })
	dial := func(own ...tls.Certificate) *grpc.ClientConn {
		return dialSinks(t, l, credentials.NewTLS(&tls.Config{RootCAs: ca.Pool(), Certificates: own}))
	}
	istiod := ca.Client("istiod", "spiffe://cluster.local/ns/istio-system/sa/istiod").TLS()
	a := newADSC(t, dial(istiod), apiNode("istio-system"), entriesType)
	if r := a.receive(); len(r.GetResources()) != 1 {
		t.Errorf("a client with a certificate gets %v", r)
	}
	if err := newADSC(t, dial(istiod), apiNode("shop"), entriesType).ends(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a client in another namespace than its certificate: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	s, err := dial().NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, ads)
	if err == nil {
		err = s.RecvMsg(new(discoveryv3.DiscoveryResponse))
	}
	if status.Code(err) != codes.Unavailable {
		t.Errorf("a client without a certificate: %v", err)
	}
}

// A client that ends its stream without a request is told so, on both ports, and harms nothing.
func TestStreamWithoutRequest(t *testing.T) {
	m := newMesh(t)
	m.Publish(sinkPolicy(&configv1.McpSink{}), sinkEntry("a.example"))
	l, sinks := withSinks(t)
	f := start(t, "f1", m, sinks)
	of := dialSinks(t, l, insecure.NewCredentials())
	for name, conn := range map[string]*grpc.ClientConn{"proxies": f.dial(nil), "sinks": of} {
		s := open[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse](t.Context(), t, conn, ads)
		if err := s.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("the port of %s: %v", name, err)
		}
	}
	if r := newADSC(t, of, apiNode("istio-system"), entriesType).receive(); len(r.GetResources()) != 1 {
		t.Errorf("afterwards a sink gets %v", r)
	}
}
