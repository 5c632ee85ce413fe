package frontend_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/deploy/testkit/testport"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/frontend"
	"meshlog.dev/services/frontend/names"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/suite/envoytest"
	"meshlog.dev/store"
)

// staticClusters is the bootstrap of an Envoy whose listeners come by ADS, and
// whose clusters are its own: there is no cds_config.
const staticClusters = `
node: {id: static, cluster: static}
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
dynamic_resources:
  ads_config:
    api_type: %s
    transport_api_version: V3
    grpc_services: [{envoy_grpc: {cluster_name: meshlog}}]
  lds_config: {ads: {}, resource_api_version: V3}
%sstatic_resources:
  clusters:
  - name: meshlog
    type: STATIC
    connect_timeout: 1s
    load_assignment:
      cluster_name: meshlog
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %d}}}}]}]
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
`

var apiTypes = map[bool]string{false: "GRPC", true: "DELTA_GRPC"}

// runEnvoy runs a real Envoy with a bootstrap until the test ends.
func runEnvoy(t *testing.T, bootstrap string) *program.Process {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "envoy.yaml")
	if err := os.WriteFile(path, []byte(bootstrap), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := program.Start("envoy", dir, []string{
		envoytest.Envoy(t), "-c", path, "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(p.Tail(20))
		}
		p.Kill()
	})
	return p
}

// onPort makes the frontend listen on a port of loopback.
func onPort(t *testing.T, port int) option {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	return func(c *frontend.Config) { c.Listeners = []net.Listener{l} }
}

func freePort(t *testing.T) int {
	t.Helper()
	port, err := testport.TCP()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// alone returns the report of the only proxy, or nil.
func alone(r *reportv1.FrontendReport) *reportv1.ProxyReport {
	if len(r.GetProxies()) != 1 {
		return nil
	}
	return r.GetProxies()[0]
}

// TestStaticClusters runs a real Envoy that has no CDS. It is never sent CDS or
// EDS, not even after the frontend starts anew, and it counts as applied (PRO-1).
func TestStaticClusters(t *testing.T) {
	for _, delta := range []bool{false, true} {
		t.Run(fmt.Sprintf("delta=%v", delta), func(t *testing.T) {
			mesh, xds := newMesh(t), freePort(t)
			mesh.Publish(
				meshtest.Put("c", meshtest.Cluster("c", 1)), meshtest.Put("e", meshtest.Endpoints("c", 1)),
				meshtest.Put("l", meshtest.Listener("l", uint32(freePort(t)), "routes")), meshtest.Put("r", meshtest.Routes("routes", meshtest.To("c", 1))),
			)
			one := start(t, "one", mesh, onPort(t, xds))
			envoy := runEnvoy(t, fmt.Sprintf(staticClusters, apiTypes[delta], "", xds))
			applied := func(v ident.Position, age time.Duration) func(*reportv1.FrontendReport) bool {
				return func(r *reportv1.FrontendReport) bool {
					p := alone(r)
					if p == nil || len(p.GetTypes()) != 2 || len(r.GetApplied()) != 1 || time.Since(p.GetConnectedSince().AsTime()) < age {
						return false
					}
					return store.VersionOf(r.GetApplied()[0].GetVersion()) == v
				}
			}
			one.eventually("the first version", applied(mesh.Last().Version(), 0))
			one.end()
			two := start(t, "two", mesh, onPort(t, xds))
			// After a second, a client that had CDS is sent it.
			r := two.eventually("Envoy after a restart", applied(mesh.Last().Version(), 1500*time.Millisecond))
			for _, typ := range alone(r).GetTypes() {
				if u := typ.GetTypeUrl(); u != ident.LDS.URL() && u != ident.RDS.URL() {
					t.Errorf("Envoy has a stream of %s", u)
				}
			}
			v := mesh.Publish(meshtest.Put("r", meshtest.Routes("routes", meshtest.To("d", 1))))
			two.eventually("a change", applied(v, 0))
			for _, said := range []string{"no current subscribers", "Cluster", "ClusterLoadAssignment"} {
				if log := envoy.Tail(100); strings.Contains(log, said) {
					t.Errorf("Envoy was sent what it did not request:\n%s", log)
				}
			}
		})
	}
}

// eventually waits until the report meets the condition, which time alone may bring
// about.
func (r *rig) eventually(what string, is func(*reportv1.FrontendReport) bool) *reportv1.FrontendReport {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), waitLimit)
	defer cancel()
	var report *reportv1.FrontendReport
	if err := program.Until(ctx, what, func(context.Context) error {
		if report = r.server.Report(); !is(report) {
			return fmt.Errorf("the report is %v", report)
		}
		return nil
	}); err != nil {
		r.t.Fatal(err)
	}
	return report
}

// TestUnknownSecrets runs a real Envoy with the delta protocol, which asks over
// ADS for a secret of a listener and one of a cluster. It is told at once that they
// do not exist, so it waits for neither: without an answer, the listener's port and
// the cluster stay cold for 15 s (E35, E36, SDS-8).
func TestUnknownSecrets(t *testing.T) {
	const most, asked = 10 * time.Second, 5 // types; no listener asks for filters
	mesh, xds, port := newMesh(t), freePort(t), freePort(t)
	secret := &tlsv3.SdsSecretConfig{Name: "nowhere", SdsConfig: &corev3.ConfigSource{
		ResourceApiVersion: corev3.ApiVersion_V3, ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
	}}
	common := &tlsv3.CommonTlsContext{TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{secret}}
	l := meshtest.Listener("l", uint32(port), "routes")
	l.GetFilterChains()[0].TransportSocket = transportSocket(t, &tlsv3.DownstreamTlsContext{CommonTlsContext: common})
	c := meshtest.Cluster("c", 1)
	c.TransportSocket = transportSocket(t, &tlsv3.UpstreamTlsContext{CommonTlsContext: common})
	mesh.Publish(
		meshtest.Put("c", c), meshtest.Put("e", meshtest.Endpoints("c", 1)),
		meshtest.Put("l", l), meshtest.Put("r", meshtest.Routes("routes", meshtest.To("c", 1))),
	)
	r := start(t, "one", mesh, onPort(t, xds))
	begin := time.Now()
	envoy := runEnvoy(t, fmt.Sprintf(staticClusters, apiTypes[true], "  cds_config: {ads: {}, resource_api_version: V3}\n", xds))
	r.eventually("every type to be applied", func(f *reportv1.FrontendReport) bool {
		p := alone(f)
		return p != nil && len(p.GetTypes()) == asked && len(f.GetApplied()) == 1 &&
			store.VersionOf(f.GetApplied()[0].GetVersion()) == mesh.Last().Version()
	})
	if err := envoy.UntilAlive(t.Context(), "the listener's port", func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return err
		}
		return conn.Close()
	}); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > most {
		t.Errorf("Envoy waited %s for secrets that do not exist, want at most %s", took, most)
	}
}

func transportSocket(t *testing.T, m proto.Message) *corev3.TransportSocket {
	t.Helper()
	packed, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return &corev3.TransportSocket{Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: packed}}
}

// TestStrictClient plays a generic xDS client that never requests CDS and stops
// reading at a type that it did not request. After it moves to a frontend that has
// just started, it is sent its own type only (PRO-1).
func TestStrictClient(t *testing.T) {
	mesh := newMesh(t)
	mesh.Publish(
		meshtest.Put("c", meshtest.Cluster("c", 1)), meshtest.Put("e", meshtest.Endpoints("c", 1)),
		meshtest.Put("l", meshtest.TCPListener("l", 1, "c")),
	)
	one, two := start(t, "one", mesh), start(t, "two", mesh)
	e := one.connect(node("strict", "m"))
	e.ask(ident.LDS)
	e.ack(e.expect(ident.LDS, "l"))
	e.cancel()
	e = e.reconnect(two)
	e.ask(ident.LDS)
	e.ack(e.expect(ident.LDS, "l")) // a message, so that its backoff ends (E29)
	two.eventually("the time at which CDS is sent unasked", func(r *reportv1.FrontendReport) bool {
		p := alone(r)
		return p != nil && time.Since(p.GetConnectedSince().AsTime()) > 1500*time.Millisecond && len(r.GetApplied()) == 1 &&
			store.VersionOf(r.GetApplied()[0].GetVersion()) == mesh.Last().Version()
	})
	mesh.Publish(meshtest.Put("m", meshtest.TCPListener("m", 2, "c")))
	e.ack(e.expect(ident.LDS, "l", "m"))
}

// TestTooManyNames checks that a stream ends with the reason if one request, or all
// of its requests together, name more resources than a stream may (XDS-1).
func TestTooManyNames(t *testing.T) {
	mesh := newMesh(t)
	mesh.Publish(meshtest.Put("e", meshtest.Endpoints("c", 1)))
	r := start(t, "one", mesh, withLimits(func(l *frontend.Limits) { l.StreamsPerAddress = 0 }))
	var list []string
	for i := range names.Max + 1 {
		list = append(list, strconv.Itoa(i))
	}
	e := r.connect(node("one", "m"))
	e.ask(ident.EDS, list...)
	_, err := e.stream.Recv()
	const what = "let the client import less, or split its configuration over several proxies"
	if s := status.Convert(err); s.Code() != codes.InvalidArgument || s.Message() != "a request with more than 250000 names: "+what {
		t.Errorf("one request: %v", err)
	}
	const method = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
	d := open[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse](t.Context(), t, r.dial(nil), method)
	for _, part := range [][]string{list[:200_000], list[200_000:]} {
		if err := d.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node("two", "m"), TypeUrl: ident.EDS.URL(), ResourceNamesSubscribe: part}); err != nil {
			t.Fatal(err)
		}
	}
	for err = nil; err == nil; {
		_, err = d.Recv()
	}
	if s := status.Convert(err); s.Code() != codes.ResourceExhausted || s.Message() != "the stream names more than 250000 resources of EDS: "+what {
		t.Errorf("two requests: %v", err)
	}
}
