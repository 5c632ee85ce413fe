package index_test

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/index"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
)

// A class says from where clients have their certificates only if there is mutual TLS of
// the mesh; gRPC clients have theirs from a provider of their bootstrap only (MTLS-17).
func TestCertificatesOfClasses(t *testing.T) {
	mutual := PushContext(t, YAML(t, workloads)...)
	none, agent := proxy.Certificates{}, proxy.Certificates{Agent: true}
	files := proxy.Certificates{Chain: "/c", Key: "/k", Roots: "/r"}
	for name, test := range map[string]struct {
		pc       *index.PushContext
		grpc     bool
		metadata map[string]any
		want     proxy.Certificates
	}{
		"nothing":                      {mutual, false, nil, none},
		"agent":                        {mutual, false, map[string]any{"SDS_CLUSTER": "sds-grpc"}, agent},
		"files":                        {mutual, false, map[string]any{"TLS_SERVER_CERT_CHAIN": "/c", "TLS_SERVER_KEY": "/k", "TLS_SERVER_ROOT_CERT": "/r"}, files},
		"gRPC client":                  {mutual, true, map[string]any{"SDS_CLUSTER": "sds-grpc"}, none},
		"gRPC client with a provider":  {mutual, true, map[string]any{"GRPC_CERTIFICATE_PROVIDER": "own"}, proxy.Certificates{Provider: "own"}},
		"gRPC client of Istio's agent": {mutual, true, map[string]any{"GENERATOR": "grpc", "ISTIO_VERSION": "1.31.1", "PROXY_CONFIG": map[string]any{}}, proxy.Certificates{Provider: "default"}},
		"Envoy that names a provider":  {mutual, false, map[string]any{"GRPC_CERTIFICATE_PROVIDER": "own"}, none},
		"Istio's agent":                {mutual, false, map[string]any{"ISTIO_VERSION": "1.31.1", "PROXY_CONFIG": map[string]any{"concurrency": 2}}, agent},
		"a node in Istio's form":       {mutual, false, map[string]any{"ISTIO_VERSION": "1.31.1"}, none},
		"plain mesh":                   {PushContext(t), false, map[string]any{"SDS_CLUSTER": "sds-grpc"}, none},
	} {
		t.Run(name, func(t *testing.T) {
			metadata, err := structpb.NewStruct(test.metadata)
			if err != nil {
				t.Fatal(err)
			}
			for _, kind := range []proxy.Type{proxy.Router, proxy.Sidecar} {
				c := index.Classify(test.pc, &proxy.Proxy{Type: kind, Namespace: "shop", GRPC: test.grpc, Metadata: metadata})
				if c.CDS.Certificates != test.want || c.EDS.Mutual != (test.want != none) {
					t.Errorf("%s: the class has %+v and %v, want %+v", kind, c.CDS.Certificates, c.EDS.Mutual, test.want)
				}
				if kind == proxy.Router && !test.grpc && c.LDS.Certificates != test.want {
					t.Errorf("%s: the class of listeners has %+v, want %+v", kind, c.LDS.Certificates, test.want)
				}
				if (c.SDS.Certificates == files) != (test.want == files) {
					t.Errorf("%s: the class of secrets has %+v", kind, c.SDS.Certificates)
				}
			}
		})
	}
}

const workloads = `
{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {namespace: shop, name: cart}, spec: {hosts: [cart.shop], ports: [{number: 80, name: http}], resolution: STATIC, location: MESH_INTERNAL, workloadSelector: {labels: {app: cart}}}}
---
{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {namespace: shop, name: one}, spec: {address: 10.0.0.1, labels: {app: cart}, serviceAccount: cart}}
---
{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {namespace: shop, name: two}, spec: {address: 10.0.0.2, labels: {app: cart}, serviceAccount: cart}}
`

// The identities behind a service are an input of their own, which a further endpoint of a
// known account does not change.
func TestIdentities(t *testing.T) {
	objects := YAML(t, workloads)
	id := index.ServiceID{Namespace: "shop", Hostname: "cart.shop"}
	before := PushContext(t, objects[:2]...)
	if got := before.Read().Identities(id); !got.MutualTLS || !slices.Equal(got.Accounts, []string{"shop/cart"}) {
		t.Errorf("the identities are %+v", got)
	}
	identities := func(in index.Input) bool {
		return in.Kind == index.InputIdentities || in.Kind == index.InputMutualTLS
	}
	next := func(objects ...Change) (*index.PushContext, []index.Input) {
		keys := make([]ident.Key, len(objects))
		for i, o := range objects {
			keys[i] = o.Key()
		}
		return before.Next(World(t, objects...), keys)
	}
	if _, changed := next(objects...); slices.ContainsFunc(changed, identities) {
		t.Errorf("a second endpoint of the account changed %v", changed)
	}
	other := YAML(t, `{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {namespace: shop, name: two}, spec: {address: 10.0.0.2, labels: {app: cart}, serviceAccount: other}}`)
	after, changed := next(append(objects[:2:2], other...)...)
	if got := after.Read().Identities(id); !slices.Equal(got.Accounts, []string{"shop/cart", "shop/other"}) || !slices.ContainsFunc(changed, identities) {
		t.Errorf("with another account the identities are %+v; changed: %v", got, changed)
	}
	if !before.SameClasses(after) {
		t.Error("another account changed classes")
	}
	plain := YAML(t, `{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {namespace: shop, name: one}, spec: {address: 10.0.0.1, labels: {app: cart, security.istio.io/tlsMode: disabled}, serviceAccount: cart}}`)
	after, _ = next(append(objects[:1:1], plain...)...)
	if after.Read().MutualTLS() || before.SameClasses(after) {
		t.Error("without an endpoint that speaks mutual TLS, the mesh has some")
	}
}

// SVC-14: what the Services of all clusters name counts, each once. A Service of another
// namespace, which has another host, adds nothing.
func TestAnnotatedAccountsOfClusters(t *testing.T) {
	in := func(cluster, namespace string, accounts, identities []string) Change {
		return Object("Service", namespace, "cart", &registryv1.Service{ServiceAccounts: accounts, Identities: identities}).From("kubernetes").In(cluster)
	}
	pc := PushContext(t,
		in("one", "shop", []string{"web", "cart"}, nil),
		in("two", "shop", []string{"cart", "old"}, []string{"spiffe://two/x"}),
		in("two", "bank", []string{"teller"}, []string{"spiffe://two/y"}),
	)
	s := pc.Read().Service(index.ServiceID{Namespace: "shop", Hostname: "cart.shop.svc.cluster.local"})
	if want := []string{"shop/cart", "shop/old", "shop/web"}; !slices.Equal(s.Accounts, want) {
		t.Errorf("accounts %q, want %q", s.Accounts, want)
	}
	if want := []string{"spiffe://two/x"}; !slices.Equal(s.Identities, want) {
		t.Errorf("names in full %q, want %q", s.Identities, want)
	}
}
