package proxyless_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	grpcxds "google.golang.org/grpc/xds"
	"google.golang.org/protobuf/types/known/anypb"

	"meshlog.dev/proto/ident"
)

// patience is the deadline of a call; a failing call ends sooner.
const patience = 20 * time.Second

// A real gRPC client resolves and calls services, and rejects no resource. It calls
// them by all their names, by weights and subsets, and by a name that it resolves
// itself. It does not reach a host that must be encrypted.
func TestGRPCClient(t *testing.T) {
	backend := serve(t, func(s *grpc.Server) { healthv1.RegisterHealthServer(s, health.NewServer()) })
	w := &world{t: t}
	w.load(fmt.Appendf(nil, clientWorld, backend.Port))
	control := &control{world: w}
	address := serve(t, func(s *grpc.Server) { discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, control) })

	for target, want := range map[string]codes.Code{
		"reviews.shop.svc.cluster.local:80": codes.OK,
		"reviews.shop.svc:80":               codes.OK,
		"reviews.shop:80":                   codes.OK,
		"ring.example.com:80":               codes.OK,
		"least.example.com:80":              codes.OK,
		"name.example.com:80":               codes.OK,
		"faulty.example.com:80":             codes.ResourceExhausted, // as the VirtualService says
		"encrypted.example.com:80":          codes.Unavailable,
		"empty.example.com:80":              codes.Unavailable,
	} {
		t.Run(target, func(t *testing.T) {
			if got := call(t, address, target); status.Code(got) != want {
				t.Errorf("%v, want %v", got, want)
			}
		})
	}
	control.mu.Lock()
	defer control.mu.Unlock()
	for _, rejected := range control.rejected {
		t.Errorf("rejected: %s", rejected)
	}
}

const clientWorld = `
apiVersion: v1
kind: Service
metadata: {name: reviews, namespace: shop}
spec:
  clusterIP: 10.1.0.1
  ports: [{port: 80, name: grpc}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: reviews-1, namespace: shop, labels: {kubernetes.io/service-name: reviews}}
addressType: IPv4
ports: [{name: grpc, port: %[1]d}]
endpoints: [{addresses: [127.0.0.1], zone: a, conditions: {ready: true}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: reviews, namespace: shop}
spec:
  host: reviews
  subsets: [{name: none, labels: {version: none}}, {name: all}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: reviews, namespace: shop}
spec:
  hosts: [reviews]
  http:
  - match: [{headers: {canary: {exact: "yes"}}, uri: {prefix: /}}]
    route: [{destination: {host: reviews, subset: none}}]
  - match: [{headers: {"@request.auth.claims.group": {exact: admin}}}]
    route: [{destination: {host: reviews, subset: none}}]
  - match: [{uri: {regex: "/grpc[.]health.*"}, method: {regex: "POST|"}}, {uri: {prefix: /grpc.health}}]
    corsPolicy: {allowOrigins: [{exact: example.com}]}
    timeout: 10s
    retries: {attempts: 2, perTryTimeout: 1s, retryOn: "unavailable,503", backoff: 10ms}
    rewrite: {authority: other}
    route:
    - {destination: {host: reviews, subset: all}, weight: 50, headers: {request: {set: {a: b}}}}
    - {destination: {host: reviews}, weight: 50}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: hosts, namespace: shop}
spec:
  hosts: [ring.example.com, least.example.com, faulty.example.com, encrypted.example.com]
  ports: [{number: 80, name: grpc, protocol: GRPC}]
  resolution: STATIC
  endpoints: [{address: 127.0.0.1, ports: {grpc: %[1]d}, locality: eu/a/b}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: empty, namespace: shop}
spec:
  hosts: [empty.example.com]
  ports: [{number: 80, name: grpc, protocol: GRPC}]
  resolution: STATIC
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: name, namespace: shop}
spec:
  hosts: [name.example.com]
  ports: [{number: 80, name: grpc, protocol: GRPC}]
  resolution: DNS
  endpoints: [{address: localhost, ports: {grpc: %[1]d}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: ring, namespace: shop}
spec:
  host: ring.example.com
  trafficPolicy: {loadBalancer: {consistentHash: {httpHeaderName: user}}, connectionPool: {http: {http2MaxRequests: 10}}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: least, namespace: shop}
spec:
  host: least.example.com
  trafficPolicy: {loadBalancer: {simple: LEAST_REQUEST}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: encrypted, namespace: shop}
spec:
  host: encrypted.example.com
  trafficPolicy: {tls: {mode: ISTIO_MUTUAL}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: faulty, namespace: shop}
spec:
  hosts: [faulty.example.com]
  http:
  - fault: {abort: {grpcStatus: RESOURCE_EXHAUSTED, percentage: {value: 100}}}
    route: [{destination: {host: faulty.example.com}}]
`

// call makes one call to a target of the control plane.
func call(t *testing.T, control *net.TCPAddr, target string) error {
	t.Helper()
	conn := dial(t, control, target)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
	return err
}

// dial returns a client of a target of the control plane, until the test ends.
func dial(t *testing.T, control *net.TCPAddr, target string) *grpc.ClientConn {
	t.Helper()
	const nothing = `{"plugin_name": "file_watcher", "config": {"ca_certificate_file": "/none"}}`
	return dialWith(t, control, target, `{"own": `+nothing+`, "ca": `+nothing+`}`, insecure.NewCredentials())
}

// dialWith is dial with the certificate providers of the bootstrap.
func dialWith(t *testing.T, control *net.TCPAddr, target, providers string, by credentials.TransportCredentials) *grpc.ClientConn {
	t.Helper()
	builder, err := grpcxds.NewXDSResolverWithConfigForTesting(fmt.Appendf(nil, `{
		"xds_servers": [{"server_uri": %[1]q, "channel_creds": [{"type": "insecure"}], "server_features": ["xds_v3"]}],
		"node": {"id": "client"},
		"certificate_providers": %[2]s
	}`, control.String(), providers))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("xds:///"+target, grpc.WithTransportCredentials(by), grpc.WithResolvers(builder))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func serve(t *testing.T, register func(*grpc.Server), options ...grpc.ServerOption) *net.TCPAddr {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(options...)
	register(s)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().(*net.TCPAddr)
}

// control serves a world that never changes.
type control struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	world *world

	mu       sync.Mutex
	rejected []string
}

// StreamAggregatedResources answers each request for names with all resources of
// these names that exist.
func (c *control) StreamAggregatedResources(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	asked := map[string]string{} // names by type
	for nonce := 0; ; nonce++ {
		req, err := s.Recv()
		if err != nil {
			return nil //nolint:nilerr // the client has gone
		}
		if e := req.GetErrorDetail(); e != nil {
			c.mu.Lock()
			c.rejected = append(c.rejected, fmt.Sprintf("%s: %s", req.GetTypeUrl(), e.GetMessage()))
			c.mu.Unlock()
		}
		names := strings.Join(req.GetResourceNames(), "\n")
		if asked[req.GetTypeUrl()] == names {
			continue
		}
		asked[req.GetTypeUrl()] = names
		if err := s.Send(c.answer(req, nonce)); err != nil {
			return err
		}
	}
}

func (c *control) answer(req *discoveryv3.DiscoveryRequest, nonce int) *discoveryv3.DiscoveryResponse {
	rt, ok := ident.ResourceTypeOf(req.GetTypeUrl())
	if !ok {
		panic("asked for " + req.GetTypeUrl())
	}
	set, _ := c.world.generate(rt)
	resp := &discoveryv3.DiscoveryResponse{TypeUrl: req.GetTypeUrl(), VersionInfo: set.Sum.String(), Nonce: fmt.Sprint(nonce)}
	for _, name := range req.GetResourceNames() {
		if r := set.Find(name); r != nil {
			resp.Resources = append(resp.Resources, &anypb.Any{TypeUrl: req.GetTypeUrl(), Value: r.Value()})
		}
	}
	return resp
}
