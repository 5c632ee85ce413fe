package cluster_test

import (
	"slices"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/suite/envoytest"
)

// shop is a world with services of all kinds.
const shop = `
apiVersion: v1
kind: Service
metadata: {name: reviews, namespace: shop}
spec:
  clusterIP: 10.1.0.1
  ports: [{port: 80, name: http}, {port: 81, name: grpc}, {port: 82, name: tcp}, {port: 83, name: unknown}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: reviews-1, namespace: shop, labels: {kubernetes.io/service-name: reviews}}
addressType: IPv4
ports: [{name: http, port: 8080}, {name: grpc, port: 8081}]
endpoints: [{addresses: [10.0.0.1], zone: a}, {addresses: [10.0.0.2], zone: b}]
---
apiVersion: v1
kind: Service
metadata: {name: pods, namespace: shop}
spec:
  clusterIP: None
  ports: [{port: 90, name: http}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: names, namespace: shop}
spec:
  hosts: [names.example.com]
  ports: [{number: 443, name: https, protocol: HTTPS}]
  resolution: DNS
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: name, namespace: shop}
spec:
  hosts: [name.example.com]
  ports: [{number: 443, name: https, protocol: HTTPS}]
  resolution: DNS_ROUND_ROBIN
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: anything, namespace: shop}
spec:
  hosts: ["*.example.org"]
  ports: [{number: 443, name: tls, protocol: TLS}]
  resolution: NONE
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: reviews, namespace: shop}
spec:
  host: reviews
  trafficPolicy:
    outlierDetection: {consecutive5xxErrors: 3}
    portLevelSettings:
    - port: {number: 82}
      connectionPool: {tcp: {maxConnections: 7}}
  subsets: [{name: v1, labels: {version: v1}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: own, namespace: other}
spec:
  host: reviews.shop.svc.cluster.local
  exportTo: ["."]
  trafficPolicy: {tls: {mode: ISTIO_MUTUAL}}
`

// A real Envoy accepts all resources of a sidecar together, and those of a router.
func TestWorld(t *testing.T) {
	pc := meshtest.PushContext(t, meshtest.YAML(t, shop)...)
	reviews := []string{
		"outbound|80|v1|reviews.shop.svc.cluster.local", "outbound|80||reviews.shop.svc.cluster.local",
		"outbound|81|v1|reviews.shop.svc.cluster.local", "outbound|81||reviews.shop.svc.cluster.local",
		"outbound|82|v1|reviews.shop.svc.cluster.local", "outbound|82||reviews.shop.svc.cluster.local",
		"outbound|83|v1|reviews.shop.svc.cluster.local", "outbound|83||reviews.shop.svc.cluster.local",
	}
	pods := "outbound|90||pods.shop.svc.cluster.local"
	clusters := slices.Sorted(slices.Values(append(slices.Clone(reviews), pods, "BlackHoleCluster",
		"outbound|443||*.example.org", "outbound|443||name.example.com", "outbound|443||names.example.com")))
	for _, test := range []struct {
		proxy               proxy.Proxy
		clusters, endpoints []string
	}{
		{proxy.Proxy{Type: proxy.Sidecar, Namespace: "shop"}, slices.Insert(slices.Clone(clusters), 1, "InboundPassthroughCluster", "PassthroughCluster"), reviews},
		{proxy.Proxy{Type: proxy.Router, Namespace: "shop"}, clusters, append(slices.Clone(reviews), pods)},
	} {
		t.Run(string(test.proxy.Type), func(t *testing.T) {
			class := index.Classify(pc, &test.proxy)
			var config envoytest.Config
			config.Clusters = generate[*clusterv3.Cluster](t, pc, class, ident.CDS)
			config.Endpoints = generate[*endpointv3.ClusterLoadAssignment](t, pc, class, ident.EDS)
			config.Listeners = generate[*listenerv3.Listener](t, pc, class, ident.LDS)
			config.Routes = generate[*routev3.RouteConfiguration](t, pc, class, ident.RDS)
			if diff := cmp.Diff(test.clusters, names(config.Clusters, (*clusterv3.Cluster).GetName)); diff != "" {
				t.Errorf("clusters (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.endpoints, names(config.Endpoints, (*endpointv3.ClusterLoadAssignment).GetClusterName)); diff != "" {
				t.Errorf("endpoints (-want +got):\n%s", diff)
			}
			envoytest.Validate(t, config)
		})
	}
}

// A rule that only one namespace sees changes only the resources of that
// namespace's proxies.
func TestRuleOfAnotherNamespace(t *testing.T) {
	pc := meshtest.PushContext(t, meshtest.YAML(t, shop)...)
	const name = "outbound|80||reviews.shop.svc.cluster.local"
	for namespace, want := range map[string]clusterv3.Cluster_DiscoveryType{
		"shop": clusterv3.Cluster_EDS, "third": clusterv3.Cluster_EDS, "other": clusterv3.Cluster_STATIC,
	} {
		class := index.Classify(pc, &proxy.Proxy{Type: proxy.Sidecar, Namespace: namespace})
		set := xds.NewCatalog(pc).Set(class, ident.CDS)
		c := new(clusterv3.Cluster)
		if err := proto.Unmarshal(set.Find(name).Value(), c); err != nil {
			t.Fatal(err)
		}
		if c.GetType() != want {
			t.Errorf("namespace %s: the cluster has type %s, want %s", namespace, c.GetType(), want)
		}
	}
}

func generate[M proto.Message](t *testing.T, pc *index.PushContext, class index.ProxyClass, rt ident.ResourceType) []M {
	t.Helper()
	catalog := xds.NewCatalog(pc)
	set := catalog.Set(class, rt)
	for _, d := range catalog.Diagnostics() {
		t.Errorf("%s: %+v", rt, d)
	}
	var all []M
	for _, r := range set.Resources {
		var zero M
		m := zero.ProtoReflect().New().Interface().(M)
		if err := proto.Unmarshal(r.Value(), m); err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
	return all
}

func names[M any](all []M, name func(M) string) []string {
	var out []string
	for _, m := range all {
		out = append(out, name(m))
	}
	slices.SortFunc(out, strings.Compare)
	return out
}
