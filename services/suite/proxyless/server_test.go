package proxyless_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	grpcxdscreds "google.golang.org/grpc/credentials/xds"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	grpcxds "google.golang.org/grpc/xds"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"
)

// servedWorld is a service that a gRPC server is, with the mode of its port.
const servedWorld = `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: mode, namespace: shop}
spec: {mtls: {mode: %[2]s}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: cart, namespace: shop}
spec:
  hosts: [cart.example]
  location: MESH_INTERNAL
  ports: [{number: 80, name: grpc, protocol: GRPC}]
  resolution: STATIC
  endpoints: [{address: 127.0.0.1, ports: {grpc: %[1]d}, serviceAccount: cart}]
`

// rig is a gRPC server that is configured by a control plane.
type rig struct {
	*testing.T
	server, client *control
	address        *net.TCPAddr // of the control plane of clients
	port           int
	problems       []problem.Diagnostic
	serving        chan struct{} // closed when the server has its Listener
}

// newRig runs a gRPC server with these policies until the test ends. own is the name of
// the certificate provider in its metadata; empty: it names none.
func newRig(t *testing.T, mesh *certtest.CA, mode, own string, policies ...string) *rig {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{T: t, port: l.Addr().(*net.TCPAddr).Port, serving: make(chan struct{})}
	pc := meshtest.PushContext(t, meshtest.YAML(t, strings.Join(append([]string{fmt.Sprintf(servedWorld, r.port, mode)}, policies...), "\n---\n"))...)
	of := func(p *proxy.Proxy) *control {
		if own != "" {
			named, err := structpb.NewStruct(map[string]any{"GRPC_CERTIFICATE_PROVIDER": own})
			if err != nil {
				t.Fatal(err)
			}
			p.Metadata = named
		}
		return &control{world: &world{t: t, pc: pc, class: index.Classify(pc, p)}}
	}
	r.client = of(&proxy.Proxy{GRPC: true, Namespace: "client"})
	r.server = of(&proxy.Proxy{GRPC: true, ID: "sidecar~127.0.0.1~cart-1.shop~shop.svc.cluster.local", Namespace: "shop"})
	for _, c := range []*control{r.server, r.client} {
		_, ds := c.world.generate(ident.LDS)
		r.problems = append(r.problems, ds...)
	}
	r.address = serve(t, func(s *grpc.Server) { discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, r.client) })
	from := serve(t, func(s *grpc.Server) { discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, r.server) })
	serves := sync.OnceFunc(func() { close(r.serving) })
	creds, err := grpcxdscreds.NewServerCredentials(grpcxdscreds.ServerOptions{FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		t.Fatal(err)
	}
	s, err := grpcxds.NewGRPCServer(grpc.Creds(creds), grpcxds.ServingModeCallback(func(_ net.Addr, args grpcxds.ServingModeChangeArgs) {
		if args.Mode == connectivity.ServingModeServing {
			serves()
		}
	}), grpcxds.BootstrapContentsForTesting(fmt.Appendf(nil, `{
		"xds_servers": [{"server_uri": %q, "channel_creds": [{"type": "insecure"}], "server_features": ["xds_v3"]}],
		"node": {"id": "server"},
		"server_listener_resource_name_template": "grpc/server?xds.resource.listening_address=%%s",
		"certificate_providers": %s
	}`, from.String(), provider(t, mesh, mesh.Peer("", "spiffe://cluster.local/ns/shop/sa/cart")))))
	if err != nil {
		t.Fatal(err)
	}
	healthv1.RegisterHealthServer(s, health.NewServer())
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Log(err)
		}
	})
	return r
}

// accepted checks that no resource was rejected. A client that is closed may reject one.
func (r *rig) accepted() {
	r.Helper()
	for _, c := range []*control{r.server, r.client} {
		c.mu.Lock()
		for _, rejected := range c.rejected {
			r.Errorf("rejected: %s", rejected)
		}
		c.mu.Unlock()
	}
}

// as calls the server as a client with a certificate for that identity.
func (r *rig) as(mesh *certtest.CA, identity string, headers ...string) codes.Code {
	r.Helper()
	creds, err := grpcxdscreds.NewClientCredentials(grpcxdscreds.ClientOptions{FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		r.Fatal(err)
	}
	return r.check(dialWith(r.T, r.address, "cart.example:80", provider(r.T, mesh, mesh.Client("", identity)), creds), headers...)
}

// plainly calls the server in plain text.
func (r *rig) plainly() codes.Code {
	r.Helper()
	conn, err := grpc.NewClient(fmt.Sprintf("passthrough:///127.0.0.1:%d", r.port), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { conn.Close() })
	return r.check(conn)
}

// check makes a call once the server serves.
func (r *rig) check(conn *grpc.ClientConn, headers ...string) codes.Code {
	r.Helper()
	select {
	case <-r.serving:
	case <-time.After(patience):
		r.Fatal("the server does not serve")
	}
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(r.Context(), headers...), patience)
	defer cancel()
	_, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
	return status.Code(err)
}

const (
	caller   = "spiffe://cluster.local/ns/client/sa/client"
	stranger = "spiffe://cluster.local/ns/client/sa/other"
	foreign  = "spiffe://evil.example/ns/client/sa/client"
)

func authorizationPolicy(spec string) string {
	return "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: p, namespace: shop}\nspec: " + spec
}

const tokenPolicy = `apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: shop}
spec: {jwtRules: [{issuer: "https://issuer.example", jwksUri: "https://issuer.example/keys"}]}`

// MTLS-17: a real gRPC server whose port is STRICT takes clients of the mesh only, with the
// certificate provider of its bootstrap, and enforces AuthorizationPolicies by the
// identities of clients. What it cannot enforce it refuses, and the policy is reported. It
// rejects no resource.
func TestServer(t *testing.T) {
	mesh := certtest.NewCA("mesh")
	const ok, denied = codes.OK, codes.PermissionDenied
	for name, test := range map[string]struct {
		policies                 []string
		caller, stranger, tokens codes.Code
		reported                 string
	}{
		"none":  {nil, ok, ok, ok, ""},
		"allow": {[]string{authorizationPolicy(`{rules: [{from: [{source: {principals: ["cluster.local/ns/client/sa/client"]}}]}]}`)}, ok, denied, ok, ""},
		"deny":  {[]string{authorizationPolicy(`{action: DENY, rules: [{from: [{source: {principals: ["cluster.local/ns/client/sa/client"]}}], to: [{operation: {paths: ["/grpc.health.v1.Health/*"]}}]}]}`)}, denied, ok, denied, ""},
		"other": {[]string{authorizationPolicy(`{action: DENY, rules: [{to: [{operation: {paths: ["/other/*"]}}]}]}`)}, ok, ok, ok, ""},
		"custom": {[]string{authorizationPolicy(`{action: CUSTOM, provider: {name: x}, rules: [{from: [{source: {namespaces: [client]}}]}]}`)}, denied, denied, denied,
			"cannot ask an authorizer"},
		"custom, elsewhere":  {[]string{authorizationPolicy(`{action: CUSTOM, provider: {name: x}, rules: [{to: [{operation: {paths: [/other/*]}}]}]}`)}, ok, ok, ok, "cannot ask an authorizer"},
		"tokens":             {[]string{tokenPolicy}, ok, ok, denied, "cannot verify tokens"},
		"tokens, required":   {[]string{tokenPolicy, authorizationPolicy(`{action: DENY, rules: [{from: [{source: {notRequestPrincipals: ["*"]}}]}]}`)}, denied, denied, denied, "cannot verify tokens"},
		"tokens, allowed":    {[]string{tokenPolicy, authorizationPolicy(`{rules: [{from: [{source: {requestPrincipals: ["*"]}}]}]}`)}, denied, denied, denied, "cannot verify tokens"},
		"unknown to servers": {[]string{authorizationPolicy(`{action: DENY, rules: [{to: [{operation: {paths: ["/{*}/other"]}}]}]}`)}, denied, denied, denied, "do not know conditions of the kind uri_template"},
		"reserved header":    {[]string{authorizationPolicy(`{action: DENY, rules: [{when: [{key: "request.headers[grpc-timeout]", values: [x]}]}]}`)}, denied, denied, denied, "do not know conditions on the header grpc-timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, mesh, "STRICT", "own", test.policies...)
			for what, got := range map[string][2]codes.Code{
				"caller": {r.as(mesh, caller), test.caller}, "stranger": {r.as(mesh, stranger), test.stranger},
				"token":              {r.as(mesh, caller, "authorization", "Bearer a.b.c"), test.tokens},
				"other trust domain": {r.as(mesh, foreign), denied}, "plain text": {r.plainly(), codes.Unavailable},
			} {
				if got[0] != got[1] {
					t.Errorf("%s: %v, want %v", what, got[0], got[1])
				}
			}
			r.accepted()
			var said []string
			for _, d := range r.problems {
				if d.Code == "unsupported" {
					said = append(said, d.Reason)
				}
			}
			if text := strings.Join(said, "\n"); !strings.Contains(text, test.reported) || test.reported == "" && text != "" {
				t.Errorf("reported: %q, want %q", text, test.reported)
			}
		})
	}
}

// MTLS-17: a gRPC server takes plain text on a port that is DISABLE or PERMISSIVE, and is
// reported if the port could take mutual TLS; policies by identity refuse such clients. One
// without a certificate provider does not serve a STRICT port.
func TestServerModes(t *testing.T) {
	mesh := certtest.NewCA("mesh")
	for _, mode := range []string{"DISABLE", "PERMISSIVE"} {
		r := newRig(t, mesh, mode, "own")
		if got := r.plainly(); got != codes.OK {
			t.Errorf("%s: %v", mode, got)
		}
		reported := false
		for _, d := range r.problems {
			reported = reported || strings.HasPrefix(d.Reason, "gRPC servers cannot take mutual TLS and plain text")
		}
		if reported != (mode == "PERMISSIVE") {
			t.Errorf("%s: %v", mode, r.problems)
		}
		r = newRig(t, mesh, mode, "own", authorizationPolicy(`{rules: [{from: [{source: {principals: ["*"]}}]}]}`))
		if got := r.plainly(); got != codes.PermissionDenied {
			t.Errorf("%s, of a verified client: %v", mode, got)
		}
		r.accepted()
	}
	r := newRig(t, mesh, "STRICT", "")
	set, _ := r.server.world.generate(ident.LDS)
	for _, l := range set.Resources {
		if strings.HasPrefix(l.Name, index.GRPCServer) {
			t.Errorf("a server without a certificate has the listener %s", l.Name)
		}
	}
	if !slices.ContainsFunc(r.problems, func(d problem.Diagnostic) bool {
		return strings.HasPrefix(d.Reason, "gRPC servers without a certificate")
	}) {
		t.Errorf("a server without a certificate: %v", r.problems)
	}
}
