package proxyless_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	grpcxdscreds "google.golang.org/grpc/credentials/xds"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/deploy/testkit/certtest"
)

// MTLS-17: a real gRPC client whose bootstrap has a certificate provider uses mutual TLS for
// a service whose endpoints are all STRICT, or whose DestinationRule says ISTIO_MUTUAL, and
// accepts the identities behind the service. It calls all other services in plain text. A
// client without a provider reaches only services that take plain text. No client is sent
// a resource that it would reject.
func TestMutualTLS(t *testing.T) {
	mesh := certtest.NewCA("mesh")
	const cart, client = "spiffe://cluster.local/ns/shop/sa/cart", "spiffe://cluster.local/ns/shop/sa/client"
	secured := serve(t, healthy, grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{mesh.Peer("", cart).TLS()}, ClientCAs: mesh.Pool(), ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12,
	})), grpc.UnaryInterceptor(onlyFrom(client)))
	plain := serve(t, healthy)

	for name, test := range map[string]struct {
		metadata map[string]any
		want     map[string]codes.Code
	}{
		"provider": {map[string]any{"GRPC_CERTIFICATE_PROVIDER": "own"}, map[string]codes.Code{
			"strict": codes.OK, "other": codes.Unavailable, "permissive": codes.OK, "ruled": codes.OK, "mixed": codes.OK,
		}},
		"no provider": {nil, map[string]codes.Code{
			"strict": codes.Unavailable, "other": codes.Unavailable, "permissive": codes.OK, "ruled": codes.Unavailable, "mixed": codes.OK,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			metadata, err := structpb.NewStruct(test.metadata)
			if err != nil {
				t.Fatal(err)
			}
			w := &world{t: t, metadata: metadata}
			w.load(fmt.Appendf(nil, mutualWorld, secured.Port, plain.Port))
			control := &control{world: w}
			address := serve(t, func(s *grpc.Server) { discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, control) })
			providers := provider(t, mesh, mesh.Client("", client))
			for service, want := range test.want {
				if got := callSecurely(t, address, service+".example:80", providers); status.Code(got) != want {
					t.Errorf("%s: %v, want %v", service, got, want)
				}
			}
			control.mu.Lock()
			defer control.mu.Unlock()
			if len(control.rejected) > 0 {
				t.Errorf("rejected: %s", strings.Join(control.rejected, "\n"))
			}
		})
	}
}

func healthy(s *grpc.Server) { healthv1.RegisterHealthServer(s, health.NewServer()) }

// onlyFrom refuses requests of clients with another identity.
func onlyFrom(identity string) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		p, _ := peer.FromContext(ctx)
		info, ok := p.AuthInfo.(credentials.TLSInfo)
		if !ok || info.SPIFFEID == nil || info.SPIFFEID.String() != identity {
			return nil, status.Errorf(codes.PermissionDenied, "the caller is %v", info.SPIFFEID)
		}
		return handler(ctx, req)
	}
}

// provider returns the certificate providers of a bootstrap: one, "own", with a certificate
// and the CAs.
func provider(t *testing.T, ca *certtest.CA, pair certtest.Pair) string {
	t.Helper()
	dir := t.TempDir()
	cert, key := pair.Write(t, dir, "own")
	return fmt.Sprintf(`{"own": {"plugin_name": "file_watcher", "config": {"certificate_file": %q, "private_key_file": %q, "ca_certificate_file": %q}}}`,
		cert, key, certtest.WriteFile(t, dir, "roots.pem", ca.PEM()))
}

// callSecurely is call for a client that takes its credentials from the control plane.
func callSecurely(t *testing.T, control *net.TCPAddr, target, providers string) error {
	t.Helper()
	creds, err := grpcxdscreds.NewClientCredentials(grpcxdscreds.ClientOptions{FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		t.Fatal(err)
	}
	conn := dialWith(t, control, target, providers, creds)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err = healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
	return err
}

const mutualWorld = `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: strict, namespace: shop}
spec: {selector: {matchLabels: {mode: strict}}, mtls: {mode: STRICT}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: strict, namespace: shop}
spec:
  hosts: [strict.example]
  location: MESH_INTERNAL
  ports: [{number: 80, name: grpc, protocol: GRPC}]
  resolution: STATIC
  endpoints: [{address: 127.0.0.1, ports: {grpc: %[1]d}, labels: {mode: strict}, serviceAccount: cart}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: other, namespace: shop}
spec:
  hosts: [other.example]
  location: MESH_INTERNAL
  ports: [{number: 80, name: grpc, protocol: GRPC}]
  resolution: STATIC
  endpoints: [{address: 127.0.0.1, ports: {grpc: %[1]d}, labels: {mode: strict}, serviceAccount: other}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: permissive, namespace: shop}
spec:
  hosts: [permissive.example]
  location: MESH_INTERNAL
  ports: [{number: 80, name: grpc, protocol: GRPC}]
  resolution: STATIC
  endpoints: [{address: 127.0.0.1, ports: {grpc: %[2]d}, serviceAccount: cart}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: ruled, namespace: shop}
spec:
  hosts: [ruled.example]
  location: MESH_INTERNAL
  ports: [{number: 80, name: grpc, protocol: GRPC}]
  resolution: STATIC
  endpoints: [{address: 127.0.0.1, ports: {grpc: %[1]d}, serviceAccount: cart}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: ruled, namespace: shop}
spec: {host: ruled.example, trafficPolicy: {tls: {mode: ISTIO_MUTUAL}}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: mixed, namespace: shop}
spec:
  hosts: [mixed.example]
  location: MESH_INTERNAL
  ports: [{number: 80, name: grpc, protocol: GRPC}]
  resolution: STATIC
  endpoints:
  - {address: 127.0.0.1, ports: {grpc: %[1]d}, labels: {mode: strict}, serviceAccount: cart}
  - {address: 127.0.0.1, ports: {grpc: %[2]d}, serviceAccount: cart}
`
