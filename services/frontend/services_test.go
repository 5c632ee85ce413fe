package frontend_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	. "meshlog.dev/services/mesh/meshtest"
)

// perType holds the method names of the services for one type each.
var perType = map[ident.ResourceType]string{
	ident.CDS: "/envoy.service.cluster.v3.ClusterDiscoveryService/%sClusters",
	ident.EDS: "/envoy.service.endpoint.v3.EndpointDiscoveryService/%sEndpoints",
	ident.LDS: "/envoy.service.listener.v3.ListenerDiscoveryService/%sListeners",
	ident.RDS: "/envoy.service.route.v3.RouteDiscoveryService/%sRoutes",
}

// inShop holds, for each type, the resource in a shop and the name that requests it.
var inShop = map[ident.ResourceType]struct{ name, subscription string }{
	ident.CDS: {"v1", "*"}, ident.EDS: {"v1", "v1"}, ident.LDS: {"http", "*"}, ident.RDS: {"routes", "routes"},
}

// deltaEnvoy is a client of the incremental protocol.
type deltaEnvoy struct {
	t      testing.TB
	stream grpc.BidiStreamingClient[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse]
	node   *corev3.Node
	has    map[ident.ResourceType]map[string]string // versions by name
}

const deltaADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"

func (r *rig) connectDelta(method string, n *corev3.Node) *deltaEnvoy {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r.t.Cleanup(cancel)
	s := open[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse](ctx, r.t, r.dial(nil), method)
	return &deltaEnvoy{t: r.t, stream: s, node: n, has: map[ident.ResourceType]map[string]string{}}
}

// ask subscribes, and sends the versions that the client has.
func (e *deltaEnvoy) ask(t ident.ResourceType, names ...string) {
	e.t.Helper()
	e.send(&discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: t.URL(), ResourceNamesSubscribe: names, InitialResourceVersions: e.has[t], Node: e.node,
	})
}

func (e *deltaEnvoy) send(r *discoveryv3.DeltaDiscoveryRequest) {
	e.t.Helper()
	if err := e.stream.Send(r); err != nil {
		e.t.Fatalf("send: %v", err)
	}
}

// expect receives a response of a type with these names, and ACKs it. Removed names
// have the prefix "-".
func (e *deltaEnvoy) expect(t ident.ResourceType, names ...string) *discoveryv3.DeltaDiscoveryResponse {
	e.t.Helper()
	r, err := e.stream.Recv()
	if err != nil {
		e.t.Fatalf("receive: %v", err)
	}
	got := []string{}
	if e.has[t] == nil {
		e.has[t] = map[string]string{}
	}
	for _, res := range r.GetResources() {
		got = append(got, res.GetName())
		e.has[t][res.GetName()] = res.GetVersion()
	}
	for _, name := range r.GetRemovedResources() {
		got = append(got, "-"+name)
		delete(e.has[t], name)
	}
	slices.Sort(got)
	if diff := cmp.Diff(append([]string{t.URL()}, names...), append([]string{r.GetTypeUrl()}, got...)); diff != "" {
		e.t.Fatalf("response (-want +got):\n%s", diff)
	}
	e.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()})
	return r
}

func TestPerType(t *testing.T) {
	mesh := shop(t)
	f := start(t, "f1", mesh)
	for _, typ := range []ident.ResourceType{ident.CDS, ident.EDS, ident.LDS, ident.RDS} {
		method, resource := perType[typ], inShop[typ]
		t.Run(typ.String(), func(t *testing.T) {
			e := connectTo(t, f.dial(nil), fmt.Sprintf(method, "Stream"), node("web-1", "web"))
			e.ask(typ, resource.subscription)
			e.ack(e.expect(typ, resource.name))

			d := f.connectDelta(fmt.Sprintf(method, "Delta"), node("web-1", "web"))
			d.ask(typ, resource.subscription)
			d.expect(typ, resource.name)

			err := f.dial(nil).Invoke(t.Context(), fmt.Sprintf(method, "Fetch"), &discoveryv3.DiscoveryRequest{}, &emptypb.Empty{})
			if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "DELTA_GRPC") {
				t.Errorf("polling: got %v, want UNIMPLEMENTED with advice", err)
			}
		})
	}
	// A change reaches both kinds of stream of its type.
	e := connectTo(t, f.dial(nil), fmt.Sprintf(perType[ident.EDS], "Stream"), node("web-2", "web"))
	e.ask(ident.EDS, "v1")
	e.ack(e.expect(ident.EDS, "v1"))
	mesh.Publish(Put("v1-endpoints", Endpoints("v1", 8001, 8002)))
	e.ack(e.expect(ident.EDS, "v1"))
}

func TestDelta(t *testing.T) {
	mesh := shop(t)
	f := start(t, "f1", mesh)
	e := f.connectDelta(deltaADS, node("web-1", "web"))
	boot := func() {
		e.ask(ident.CDS, "*")
		e.expect(ident.CDS, "v1")
		e.ask(ident.EDS, "v1")
		e.expect(ident.EDS, "v1")
		e.ask(ident.LDS, "*")
		e.expect(ident.LDS, "http")
		e.ask(ident.RDS, "routes")
		e.expect(ident.RDS, "routes")
	}
	boot()
	v := mesh.Publish(
		Put("v2", Cluster("v2", 1)), Put("v2-endpoints", Endpoints("v2", 8002)),
		Put("routes", Routes("routes", To("v1", 90), To("v2", 10))),
	)
	e.expect(ident.CDS, "v2")
	e.expect(ident.EDS, "v2")
	e.expect(ident.RDS, "routes")
	f.until("all is acknowledged", func(r *reportv1.FrontendReport) bool { return ackedAll(r, v.Seq) })

	// Another frontend sends no content to a client that reconnects with all of it.
	other := start(t, "f2", mesh)
	has := e.has
	e = other.connectDelta(deltaADS, node("web-1", "web"))
	e.has = has
	e.ask(ident.CDS, "*")
	e.ask(ident.EDS, "v1", "v2")
	e.ask(ident.LDS, "*")
	e.ask(ident.RDS, "routes")
	if r, err := e.stream.Recv(); err != nil || len(r.GetResources())+len(r.GetRemovedResources()) != 0 {
		t.Fatalf("got %v, %v; want an empty answer", r, err)
	}
}

func ackedAll(r *reportv1.FrontendReport, seq uint64) bool {
	for _, p := range r.GetProxies() {
		for _, t := range p.GetTypes() {
			if t.GetAcked().GetSeq() != seq {
				return false
			}
		}
	}
	return len(r.GetProxies()) > 0
}

// A malformed request ends its stream, and no other on the connection.
func TestMalformedRequest(t *testing.T) {
	f := start(t, "f1", shop(t))
	conn := f.dial(nil)
	good, bad := connect(t, conn, node("web-1", "web")), connect(t, conn, node("web-2", "web"))
	good.ask(ident.CDS)
	good.ack(good.expect(ident.CDS, "v1"))
	bad.ask(ident.CDS)
	bad.ack(bad.expect(ident.CDS, "v1"))
	raw := bad.stream.(*grpc.GenericClientStream[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse])
	m := &emptypb.Empty{}
	m.ProtoReflect().SetUnknown([]byte{0x0a, 0x7f}) // version_info of 127 bytes that are not there
	if err := raw.SendMsg(m); err != nil {
		t.Fatal(err)
	}
	if _, err := bad.stream.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("got %v, want INVALID_ARGUMENT", err)
	}
	good.ask(ident.LDS)
	good.ack(good.expect(ident.LDS, "http"))
}

// A client with 30,000 clusters asks for all their endpoints in one request
// (E39).
func TestLargeRequest(t *testing.T) {
	mesh := newMesh(t)
	name := strings.Repeat("n", 200)
	mesh.Publish(Put("last", Cluster(name, 1)), Put("last-endpoints", Endpoints(name, 1)))
	f := start(t, "f1", mesh)
	e := f.connect(node("web-1", "web"))
	names := []string{name}
	for i := range 30_000 {
		names = append(names, fmt.Sprintf("outbound|80|v%d|%0140d.default.svc.cluster.local", i, i))
	}
	e.ask(ident.EDS, names...)
	if got := len(e.receive().GetResources()); got != len(names) {
		t.Errorf("%d resources, want %d", got, len(names))
	}
}
