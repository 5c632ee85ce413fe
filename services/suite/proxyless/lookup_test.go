package proxyless_test

import (
	"fmt"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Raw resources configure a real gRPC client: it asks the lookup service that its
// routes name for the cluster, and dials the host name among the endpoints (PRO-6).
func TestRouteLookup(t *testing.T) {
	backend := serve(t, func(s *grpc.Server) { healthv1.RegisterHealthServer(s, health.NewServer()) })
	asked := make(chan string, 1)
	lookup := serve(t, nothing, grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		if err := s.RecvMsg(new(emptypb.Empty)); err != nil {
			return err
		}
		method, _ := grpc.MethodFromServerStream(s)
		asked <- method
		answer := new(emptypb.Empty) // with field 3 of a RouteLookupResponse, targets
		answer.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 3, protowire.BytesType), "backend"))
		return s.SendMsg(answer)
	}))
	w := &world{t: t}
	w.load(fmt.Appendf(nil, lookupWorld, lookup.Port, backend.Port))
	control := &control{world: w}
	address := serve(t, func(s *grpc.Server) { discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, control) })

	if err := call(t, address, "looked-up.example.com"); err != nil {
		t.Error(err)
	}
	select {
	case method := <-asked:
		if !strings.HasPrefix(method, "/grpc.lookup.v1.RouteLookupService/") {
			t.Errorf("the lookup service was asked for %s", method)
		}
	default:
		t.Error("the lookup service was not asked")
	}
	control.mu.Lock()
	defer control.mu.Unlock()
	for _, rejected := range control.rejected {
		t.Errorf("rejected: %s", rejected)
	}
}

func nothing(*grpc.Server) {}

const lookupWorld = `
apiVersion: envoy.meshlog.dev/v1
kind: Resource
metadata: {name: listener, namespace: shop}
spec:
  nodes: {client: grpc}
  resource:
    "@type": type.googleapis.com/envoy.config.listener.v3.Listener
    name: looked-up.example.com
    apiListener:
      apiListener:
        "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
        rds: {routeConfigName: looked-up, configSource: {ads: {}}}
        httpFilters: [{name: router, typedConfig: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]
---
apiVersion: envoy.meshlog.dev/v1
kind: Resource
metadata: {name: routes, namespace: shop}
spec:
  nodes: {client: grpc}
  resource:
    "@type": type.googleapis.com/envoy.config.route.v3.RouteConfiguration
    name: looked-up
    clusterSpecifierPlugins:
    - extension:
        name: rls
        typedConfig:
          "@type": type.googleapis.com/grpc.lookup.v1.RouteLookupClusterSpecifier
          routeLookupConfig:
            lookupService: dns:///localhost:%d
            cacheSizeBytes: 1048576
            grpcKeybuilders: [{names: [{service: grpc.health.v1.Health}]}]
    virtualHosts: [{name: all, domains: ["*"], routes: [{match: {prefix: ""}, route: {clusterSpecifierPlugin: rls}}]}]
---
apiVersion: envoy.meshlog.dev/v1
kind: Resource
metadata: {name: backend, namespace: shop}
spec:
  nodes: {client: grpc}
  resource:
    "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
    name: backend
    type: EDS
    edsClusterConfig: {edsConfig: {ads: {}}}
---
apiVersion: envoy.meshlog.dev/v1
kind: Resource
metadata: {name: endpoints, namespace: shop}
spec:
  nodes: {client: grpc}
  resource:
    "@type": type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment
    clusterName: backend
    endpoints:
    - locality: {}
      loadBalancingWeight: 1
      lbEndpoints: [{endpoint: {address: {socketAddress: {address: localhost, portValue: %d}}}}]
`
