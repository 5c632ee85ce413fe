package frontend_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend"
	"meshlog.dev/services/frontend/keys"
	. "meshlog.dev/services/mesh/meshtest"
)

// granted is the name of a Secret of another namespace than the router's.
const granted = "kubernetes-gateway://other/shop"

// grantTo returns a ReferenceGrant of namespace other for a Secret; empty: for all.
func grantTo(t *testing.T, namespace, name string) Change {
	t.Helper()
	return YAML(t, fmt.Sprintf(`apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: grant, namespace: other}
spec:
  from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: %s}]
  to: [{group: "", kind: Secret, name: "%s"}]
`, namespace, name))[0]
}

// newKept starts a frontend with TLS and a store of keys that asks a watcher.
func newKept(t *testing.T, watcher *keeper) *tlsPorts {
	t.Helper()
	var server atomic.Pointer[frontend.Server]
	kept := keys.New(keys.Config{
		Ask: watcher.ask, Sums: hmacs.Key, Log: slog.New(slog.DiscardHandler),
		OnChange: func(k keys.Key) { server.Load().KeyChanged(k) },
	})
	p := startTLS(t, true, func(c *frontend.Config) { c.Keys = kept })
	server.Store(p.server)
	ctx, cancel := context.WithCancel(t.Context())
	var runs sync.WaitGroup
	runs.Go(func() { _ = kept.Run(ctx) })
	t.Cleanup(func() { cancel(); runs.Wait() })
	return p
}

// A key of another namespace comes with its ReferenceGrant, and is taken from streams that
// have it when the grant goes. Until then, and with another grant, the secret is removed at
// once, as one that does not exist: the watcher is not asked for its key. A proxy of another
// namespace than the Gateway's never gets it, also if the grant is for its namespace (SDS-4).
func TestGrantedKey(t *testing.T) {
	t.Parallel()
	watcher := &keeper{keys: map[string][]byte{}}
	p := newKept(t, watcher)
	shop, pair := watcher.put(t, "other", "shop", true)
	p.serves(p.mesh.Publish(append(YAML(t, `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gw, namespace: edge}
spec:
  selector: {app: edge}
  servers:
  - {port: {number: 443, name: https, protocol: HTTPS}, hosts: ["*"], tls: {mode: SIMPLE, credentialName: "`+granted+`"}}
`), shop)...))

	join := func(namespace string) *deltaEnvoy {
		metadata, err := structpb.NewStruct(map[string]any{"NAMESPACE": namespace, "LABELS": map[string]any{"app": "edge"}})
		if err != nil {
			t.Fatal(err)
		}
		identity := p.clientCA.Client("edge", "spiffe://cluster.local/ns/"+namespace+"/sa/edge")
		conn, err := grpc.NewClient("passthrough:///"+p.tls.String(), grpc.WithTransportCredentials(p.client(t, identity)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return &deltaEnvoy{
			t: t, stream: open[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse](t.Context(), t, conn, deltaADS),
			node: &corev3.Node{Id: "router-" + namespace, Metadata: metadata}, has: map[ident.ResourceType]map[string]string{},
		}
	}
	holds := func(r *discoveryv3.DeltaDiscoveryResponse) {
		t.Helper()
		var s tlsv3.Secret
		if err := r.GetResources()[0].GetResource().UnmarshalTo(&s); err != nil {
			t.Fatal(err)
		}
		if c := s.GetTlsCertificate(); string(c.GetPrivateKey().GetInlineBytes()) != string(pair.Key) || c.GetCertificateChain().GetInlineString() != string(pair.Cert) {
			t.Error("the secret is not the granted one with its key")
		}
	}
	refused := func(namespace string) *deltaEnvoy {
		t.Helper()
		c := join(namespace)
		c.ask(ident.SDS, granted)
		c.expect(ident.SDS, "-"+granted)
		return c
	}
	e := refused("edge")
	for _, other := range []Change{grantTo(t, "edge", "another"), grantTo(t, "third", "shop")} {
		p.serves(p.mesh.Publish(other))
		refused("edge")
		refused("third")
	}
	watcher.mu.Lock()
	asked := watcher.asked
	watcher.mu.Unlock()
	if asked != 0 {
		t.Errorf("the watcher is asked %d times for a key that no grant permits", asked)
	}

	p.serves(p.mesh.Publish(grantTo(t, "edge", "shop")))
	holds(e.expect(ident.SDS, granted))
	refused("third")

	p.serves(p.mesh.Publish(grantTo(t, "edge", "shop").Gone()))
	e.expect(ident.SDS, "-"+granted)
	refused("edge")

	p.serves(p.mesh.Publish(grantTo(t, "edge", "")))
	holds(e.expect(ident.SDS, granted))
}

// A real Envoy opens its listener without the grant and resets connections, answers with the
// certificate of another namespace once there is one, and an Envoy that starts after the
// grant is gone has none (SDS-4, SDS-6).
func TestGrantedToEnvoy(t *testing.T) {
	t.Parallel()
	watcher := &keeper{keys: map[string][]byte{}}
	p := newKept(t, watcher)
	port, dir := freePort(t), t.TempDir()
	own, ownPair := watcher.put(t, "edge", "own", true)
	shop, shopPair := watcher.put(t, "other", "shop", true)
	servers := fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gw, namespace: edge}
spec:
  selector: {app: edge}
  servers:
  - {port: {number: %d, name: https-own, protocol: HTTPS}, hosts: [own.example], tls: {mode: SIMPLE, credentialName: own}}
  - {port: {number: %[1]d, name: https-shop, protocol: HTTPS}, hosts: [shop.example], tls: {mode: SIMPLE, credentialName: %[2]q}}
`, port, granted)
	p.serves(p.mesh.Publish(slices.Concat(YAML(t, servers), []Change{own, shop})...))
	cert, key := p.clientCA.Client("edge", "spiffe://cluster.local/ns/edge/sa/edge").Write(t, dir, "edge")
	bootstrap := fmt.Sprintf(identified, apiTypes[true], p.tls.(*net.TCPAddr).Port, cert, key, certtest.WriteFile(t, dir, "servers.pem", p.ca.PEM()))
	first := runEnvoy(t, bootstrap)
	h := handshakes{T: t, port: port}
	h.until("own", ownPair)
	if err := h.as("shop", shopPair); err == nil {
		t.Error("without a grant the server has its certificate")
	}
	p.serves(p.mesh.Publish(grantTo(t, "edge", "shop")))
	h.until("shop", shopPair)
	if err := h.as("own", ownPair); err != nil {
		t.Errorf("the other server: %v", err)
	}

	p.serves(p.mesh.Publish(grantTo(t, "edge", "shop").Gone()))
	first.Kill()
	runEnvoy(t, bootstrap)
	h.until("own", ownPair)
	if err := h.as("shop", shopPair); err == nil {
		t.Error("an Envoy that starts without the grant has the certificate")
	}
}
