package frontend_test

import (
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/frontend"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
)

// join opens a stream over TLS with a certificate.
func (p *tlsPorts) join(t *testing.T, pair certtest.Pair, n *corev3.Node) *envoy {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+p.tls.String(), grpc.WithTransportCredentials(p.client(t, pair)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	e := connect(t, conn, n)
	e.ask(ident.CDS)
	return e
}

// A proxy with an identity has the labels of its Pod, whatever it claims, and the new
// ones when they change (XDS-6, I34).
func TestPodDecides(t *testing.T) {
	labels := func(name string) map[string]any { return map[string]any{"app": name} }
	fields := func(t *testing.T, m map[string]any) *structpb.Struct {
		t.Helper()
		s, err := structpb.NewStruct(m)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	pod := func(name string, labels map[string]string) Change {
		return Object("Pod", "shop", name, &registryv1.Workload{Addresses: []string{"10.0.0.1"}, ServiceAccount: "cart", Labels: labels}).From("kubernetes").In("c1")
	}
	p := startTLS(t, true)
	forApp := func(app string) *configv1.NodeSelector {
		return &configv1.NodeSelector{Metadata: fields(t, map[string]any{"LABELS": labels(app)})}
	}
	v := p.mesh.Publish(PutFor("cart", forApp("cart"), Cluster("of-cart", 1)), PutFor("vault", forApp("vault"), Cluster("of-vault", 1)),
		pod("cart-1", map[string]string{"app": "cart"}))
	p.serves(v)
	node := func(name string) *corev3.Node {
		return &corev3.Node{
			Id:       "sidecar~10.0.0.9~" + name + ".shop~shop.svc.cluster.local",
			Metadata: fields(t, map[string]any{"NAMESPACE": "shop", "LABELS": labels("vault"), "CLUSTER_ID": "c9"}),
		}
	}
	cart := p.clientCA.Client("cart", "spiffe://cluster.local/ns/shop/sa/cart")
	e := p.join(t, cart, node("cart-1"))
	e.ack(e.expect(ident.CDS, "BlackHoleCluster", "InboundPassthroughCluster", "PassthroughCluster", "of-cart", "one"))

	// What the command line makes the resources of.
	n := new(corev3.Node)
	for _, reply := range p.server.Proxy(e.node.GetId()) {
		if err := proto.Unmarshal(reply.GetNode(), n); err != nil {
			t.Fatal(err)
		}
	}
	if known, err := proxy.New(n); err != nil || known.Labels["app"] != "cart" || known.ClusterID != "c1" {
		t.Errorf("the proxy is reported as %v, %v", known, err)
	}

	other := p.join(t, cart, node("vault-1"))
	if _, err := other.stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("a proxy that is no Pod of its account: %v, want UNAVAILABLE", err)
	}
	if got := p.counted("meshlog_frontend_streams_refused_total"); got != 1 {
		t.Errorf("%v refused streams are counted", got)
	}
	// No Pod of this account is known, so its claims count.
	outside := p.join(t, p.clientCA.Client("edge", "spiffe://cluster.local/ns/shop/sa/edge"), node("edge-1"))
	outside.ack(outside.expect(ident.CDS, "BlackHoleCluster", "InboundPassthroughCluster", "PassthroughCluster", "of-vault", "one"))
	// Without a certificate, too.
	conn, err := grpc.NewClient("passthrough:///"+p.plain.String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	plain := connect(t, conn, node("cart-1"))
	plain.ask(ident.CDS)
	plain.ack(plain.expect(ident.CDS, "BlackHoleCluster", "InboundPassthroughCluster", "PassthroughCluster", "of-vault", "one"))

	p.mesh.Publish(pod("cart-1", map[string]string{"app": "vault"}))
	e.ack(e.expect(ident.CDS, "BlackHoleCluster", "InboundPassthroughCluster", "PassthroughCluster", "of-cart", "of-vault", "one")) // removed clusters linger
	// A Pod that goes leaves its proxy as it is, until it reconnects.
	p.mesh.Publish(pod("cart-1", nil).Gone(), Put("one", Cluster("one", 2)))
	e.ack(e.expect(ident.CDS, "BlackHoleCluster", "InboundPassthroughCluster", "PassthroughCluster", "of-cart", "of-vault", "one"))
	outside.ack(outside.expect(ident.CDS, "BlackHoleCluster", "InboundPassthroughCluster", "PassthroughCluster", "of-vault", "one"))
	p.mesh.Publish(Put("edge-pod", Cluster("late", 1)),
		Object("Pod", "shop", "edge-2", &registryv1.Workload{Addresses: []string{"10.0.0.2"}, ServiceAccount: "edge", Labels: map[string]string{"app": "cart"}}).From("kubernetes").In("c1"))
	// Now there are Pods of that account, and this proxy is none of them: it has no
	// labels any more.
	outside.expect(ident.CDS, "BlackHoleCluster", "InboundPassthroughCluster", "PassthroughCluster", "late", "of-vault", "one")
}

// The streams of one identity are limited, whatever their addresses (XDS-2).
func TestStreamsOfOneIdentity(t *testing.T) {
	p := startTLS(t, true, withLimits(func(l *frontend.Limits) { l.StreamsPerIdentity = 2 }))
	cart := p.clientCA.Client("cart", "spiffe://cluster.local/ns/default/sa/cart")
	for i := range 3 {
		e := p.join(t, cart, node("web", "web"))
		_, err := e.stream.Recv()
		if (i < 2) != (err == nil) || i == 2 && !strings.Contains(err.Error(), "identity spiffe://cluster.local/ns/default/sa/cart has 2 streams already") {
			t.Errorf("stream %d: %v", i, err)
		}
	}
	e := p.join(t, p.clientCA.Client("edge", "spiffe://cluster.local/ns/default/sa/edge"), node("edge", "web"))
	e.expect(ident.CDS, "one")
}
