package frontend_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/proto/ident"
	auditv1 "meshlog.dev/proto/meshlog/audit/v1"
	keyv1 "meshlog.dev/proto/meshlog/key/v1"
	"meshlog.dev/services/frontend"
	"meshlog.dev/services/frontend/keys"
	"meshlog.dev/services/internal/keyexchange"
	"meshlog.dev/services/mesh/credential"
	. "meshlog.dev/services/mesh/meshtest"
)

// keeper answers requests for keys as a watcher does, and counts them.
type keeper struct {
	mu    sync.Mutex
	keys  map[string][]byte // by HMAC
	asked int
}

func (k *keeper) ask(_ context.Context, w keyexchange.Want) (*keyexchange.Answer, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked++
	key := k.keys[string(w.Sums["tls.key"])]
	if key == nil {
		return nil, errors.New("the watcher is away")
	}
	return &keyexchange.Answer{Outcome: keyv1.Outcome_OUTCOME_GIVEN, Fields: map[string][]byte{"tls.key": slices.Clone(key)}}, nil
}

var hmacs = credential.Options{Key: []byte("the key of the HMACs"), Public: true}

// put returns a Secret with a certificate. The watcher has its key from now on if is.
func (k *keeper) put(t *testing.T, namespace, name string, is bool) (Change, certtest.Pair) {
	t.Helper()
	pair := certtest.NewCA("ca").Server(name, time.Now().Add(time.Hour))
	ref, err := credential.Reference(credential.Source{
		Namespace: namespace, Name: name, Data: map[string][]byte{"tls.crt": pair.Cert, "tls.key": pair.Key},
	}, hmacs)
	if err != nil {
		t.Fatal(err)
	}
	if is {
		k.give(ref.GetFields()["tls.key"], pair)
	}
	return Object("Secret", namespace, name, ref), pair
}

// refOf returns the HMAC of the key of a Secret in edge.
func refOf(t *testing.T, name string, pair certtest.Pair) []byte {
	t.Helper()
	ref, err := credential.Reference(credential.Source{
		Namespace: "edge", Name: name, Data: map[string][]byte{"tls.crt": pair.Cert, "tls.key": pair.Key},
	}, hmacs)
	if err != nil {
		t.Fatal(err)
	}
	return ref.GetFields()["tls.key"]
}

func (k *keeper) give(sum []byte, pair certtest.Pair) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keys[string(sum)] = pair.Key
}

// A router with an identity is given the keys of its Gateways' secrets in its own
// namespace, and the audit has a record of each. No other client gets one, whatever it claims (SDS-4,
// KEY-13).
func TestSecrets(t *testing.T) {
	var server atomic.Pointer[frontend.Server]
	watcher := &keeper{keys: map[string][]byte{}}
	store := keys.New(keys.Config{
		Ask: watcher.ask, Sums: hmacs.Key, Log: slog.New(slog.DiscardHandler),
		OnChange: func(k keys.Key) { server.Load().KeyChanged(k) },
	})
	records := make(chan *auditv1.Record, 10)
	p := startTLS(t, true, func(c *frontend.Config) {
		c.Keys, c.Audit = store, func(r *auditv1.Record) { records <- r }
	})
	server.Store(p.server)
	ctx, cancel := context.WithCancel(t.Context())
	var runs sync.WaitGroup
	runs.Go(func() { _ = store.Run(ctx) })
	defer runs.Wait()
	defer cancel()

	shop, first := watcher.put(t, "edge", "shop", true)
	other, _ := watcher.put(t, "other", "shop", true)
	p.serves(p.mesh.Publish(append(YAML(t, `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gw, namespace: edge}
spec:
  selector: {app: edge}
  servers:
  - {port: {number: 443, name: https, protocol: HTTPS}, hosts: ["*"], tls: {mode: SIMPLE, credentialName: shop}}
`), shop, other)...))

	const secret = "kubernetes://shop"
	node := func(namespace string) *corev3.Node {
		metadata, err := structpb.NewStruct(map[string]any{"NAMESPACE": namespace, "LABELS": map[string]any{"app": "edge"}})
		if err != nil {
			t.Fatal(err)
		}
		return &corev3.Node{Id: "router-" + namespace, Metadata: metadata}
	}
	identity := func(namespace string) certtest.Pair {
		return p.clientCA.Client("edge", "spiffe://cluster.local/ns/"+namespace+"/sa/edge")
	}
	holds := func(r *discoveryv3.DiscoveryResponse, want certtest.Pair) {
		t.Helper()
		var s tlsv3.Secret
		if len(r.GetResources()) != 1 || r.GetResources()[0].UnmarshalTo(&s) != nil {
			t.Fatalf("got %v", r)
		}
		c := s.GetTlsCertificate()
		if s.GetName() != secret || string(c.GetPrivateKey().GetInlineBytes()) != string(want.Key) || c.GetCertificateChain().GetInlineString() != string(want.Cert) {
			t.Error("the secret is not that of the version, with its key")
		}
	}
	given := func(from string) {
		t.Helper()
		r := <-records
		if r.GetAction() != auditv1.Action_ACTION_KEY_GIVEN || r.GetIdentity() != "spiffe://cluster.local/ns/"+from+"/sa/edge" || r.GetName() != secret ||
			!strings.HasPrefix(r.GetObject(), "Secret "+from+"/shop") || r.GetProxy() != "router-"+from || len(r.GetDigest()) != 32 {
			t.Errorf("the audit has %v", r)
		}
	}
	e := p.join(t, identity("edge"), node("edge"))
	e.ack(e.receive())
	e.ask(ident.SDS, secret)
	r := e.receive()
	holds(r, first)
	e.ack(r, secret)
	given("edge")

	// The same labels, another namespace: another secret, or none.
	stranger := p.join(t, identity("other"), node("other"))
	stranger.ack(stranger.receive())
	stranger.ask(ident.SDS, secret, "kubernetes-gateway://edge/shop")
	r = stranger.receive()
	if b := r.String(); strings.Contains(b, string(first.Cert)) || len(r.GetResources()) != 1 {
		t.Error("a router of another namespace has the secret of the Gateway's")
	}
	given("other")

	// Without an identity, there is no secret, whatever the node says. It is another
	// type that is answered next.
	conn, err := grpc.NewClient("passthrough:///"+p.plain.String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	plain := connect(t, conn, node("edge"))
	plain.ask(ident.CDS)
	plain.ack(plain.receive())
	plain.ask(ident.SDS, secret)
	plain.ask(ident.LDS)
	if r := plain.receive(); r.GetTypeUrl() != ident.LDS.URL() {
		t.Errorf("without an identity, a proxy is sent %s", r.GetTypeUrl())
	}

	// A rotation whose key comes later: the old secret stays until then.
	next, second := watcher.put(t, "edge", "shop", false)
	p.serves(p.mesh.Publish(next))
	watcher.give(refOf(t, "shop", second), second)
	r = e.receive()
	holds(r, second)
	e.ack(r, secret)
	given("edge")
}
