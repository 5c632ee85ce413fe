package xds_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds"
)

const peered = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: cart, namespace: shop}
spec:
  hosts: [cart.example]
  location: MESH_INTERNAL
  ports: [{number: 80, name: grpc, protocol: GRPC}]
  resolution: STATIC
  endpoints: [{address: 10.0.0.1, labels: {app: cart}, serviceAccount: cart}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: other, namespace: attic}
spec:
  hosts: [other.example]
  location: MESH_INTERNAL
  ports: [{number: 80, name: grpc, protocol: GRPC}]
  resolution: STATIC
  endpoints: [{address: 10.0.0.2, labels: {app: cart}, serviceAccount: other}]
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: mode, namespace: shop}
spec: {selector: {matchLabels: {app: cart}}, mtls: {mode: %s}}
`

// A PeerAuthentication changes the listener of the workload that it selects, the endpoints
// of the services of that workload, and the clusters of gRPC clients that encrypt: nothing
// else is pushed, to no other proxy (PA-5).
func TestPushesOfPeerAuthentication(t *testing.T) {
	metadata := func(fields map[string]any) *structpb.Struct {
		s, err := structpb.NewStruct(fields)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	agent := metadata(map[string]any{"SDS_CLUSTER": proxy.SDSCluster, "INSTANCE_IPS": "10.0.0.9"})
	server := metadata(map[string]any{"SDS_CLUSTER": proxy.SDSCluster, "INSTANCE_IPS": "10.0.0.1"})
	provider := metadata(map[string]any{"GRPC_CERTIFICATE_PROVIDER": "own"})
	proxies := map[string]*proxy.Proxy{
		"server":                      {Type: proxy.Sidecar, Namespace: "shop", Labels: map[string]string{"app": "cart"}, Metadata: server},
		"neighbour":                   {Type: proxy.Sidecar, Namespace: "shop", Labels: map[string]string{"app": "web"}, Metadata: agent},
		"same labels elsewhere":       {Type: proxy.Sidecar, Namespace: "attic", Labels: map[string]string{"app": "cart"}, Metadata: agent},
		"router":                      {Type: proxy.Router, Namespace: "edge", Metadata: agent},
		"sidecar without certificate": {Type: proxy.Sidecar, Namespace: "attic"},
		"gRPC":                        {GRPC: true, Namespace: "shop"},
		"gRPC with a provider":        {GRPC: true, Namespace: "shop", Metadata: provider},
	}
	modes := map[string]*index.PushContext{}
	for _, mode := range []string{"PERMISSIVE", "STRICT", "DISABLE"} {
		modes[mode] = meshtest.PushContext(t, meshtest.YAML(t, fmt.Sprintf(peered, mode))...)
	}
	for _, test := range []struct {
		from, to string
		want     map[string][]string // resources by proxy
	}{
		{"PERMISSIVE", "STRICT", map[string][]string{
			"server":                      {"LDS virtualInbound"},
			"sidecar without certificate": {"EDS outbound|80||cart.example"},
			"gRPC":                        {"EDS outbound|80||cart.example"},
			"gRPC with a provider":        {"CDS outbound|80||cart.example"},
		}},
		{"PERMISSIVE", "DISABLE", map[string][]string{
			"server":                {"EDS outbound|80||cart.example", "LDS virtualInbound"},
			"neighbour":             {"EDS outbound|80||cart.example"},
			"same labels elsewhere": {"EDS outbound|80||cart.example"},
			"router":                {"EDS outbound|80||cart.example"},
		}},
	} {
		t.Run(test.from+" to "+test.to, func(t *testing.T) {
			got := map[string][]string{}
			for name, p := range proxies {
				if all := differences(modes[test.from], modes[test.to], p); len(all) > 0 {
					got[name] = all
				}
			}
			if diff := cmp.Diff(test.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("what is pushed (-want +got):\n%s", diff)
			}
		})
	}
}

// differences returns the resources that differ for a proxy.
func differences(before, after *index.PushContext, p *proxy.Proxy) (all []string) {
	was, is := index.Classify(before, p), index.Classify(after, p)
	catalogs := [2]*xds.Catalog{xds.NewCatalog(before), xds.NewCatalog(after)}
	for rt := range ident.ResourceTypes {
		old := catalogs[0].Set(was.Only(rt), rt)
		for _, r := range catalogs[1].Set(is.Only(rt), rt).Resources {
			if o := old.Find(r.Name); o == nil || o.Sum != r.Sum {
				all = append(all, rt.String()+" "+r.Name)
			}
		}
	}
	return all
}
