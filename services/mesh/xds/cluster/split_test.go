package cluster_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/mesh/xds/cluster"
)

const gatewaysOfTwo = `
apiVersion: mesh.istio.io/v1alpha1
kind: MeshNetworks
metadata: {name: default}
spec:
  networks:
    one: {gateways: [{address: 192.0.2.1, port: 15443}]}
    three:
      gateways:
      - {address: 192.0.2.3, port: 15443}
      - {address: 192.0.2.2, port: 15443}
      - {address: "2001:db8::1", port: 15443}
    four: {gateways: [{address: 192.0.2.1, port: 15443}]}
`

// seen returns the address and weight of each endpoint as text.
func seen(endpoints []*index.Endpoint) string {
	var all []string
	for _, e := range endpoints {
		text := fmt.Sprintf("%s=%d", e.Address, e.Weight)
		if e.Locality.Region != "" {
			text += "@" + e.Locality.Region
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

func TestNET2SplitHorizon(t *testing.T) {
	pc := meshtest.PushContext(t, meshtest.YAML(t, gatewaysOfTwo)...)
	gateways := pc.Read().NetworkGateways()
	in := func(network, address string, weight uint32) *index.Endpoint {
		return &index.Endpoint{Address: address, Port: 80, Network: network, Weight: weight, MutualTLS: true}
	}
	with := func(e *index.Endpoint, change func(*index.Endpoint)) *index.Endpoint {
		change(e)
		return e
	}
	plain := func(e *index.Endpoint) { e.MutualTLS = false }
	unhealthy := func(e *index.Endpoint) { e.Health = index.Unhealthy }
	region := func(r string) func(e *index.Endpoint) {
		return func(e *index.Endpoint) { e.Locality.Region = r }
	}
	kubernetes := func(e *index.Endpoint) { e.ClusterID, e.Kubernetes = "c2", true }
	for name, test := range map[string]struct {
		endpoints []*index.Endpoint
		view      index.ServiceView
		want      string
	}{
		"as they are":        {[]*index.Endpoint{in("", "10.0.0.1", 1), in("one", "10.0.0.2", 2)}, index.ServiceView{}, "10.0.0.1=1 10.0.0.2=2"},
		"one gateway":        {[]*index.Endpoint{in("", "10.0.0.1", 1), in("one", "10.0.0.2", 2), in("one", "10.0.0.3", 3)}, index.ServiceView{Through: "one"}, "10.0.0.1=1 192.0.2.1=5"},
		"three gateways":     {[]*index.Endpoint{in("one", "10.0.0.1", 2), in("three", "10.0.0.2", 1)}, index.ServiceView{Through: "three"}, "10.0.0.1=6 192.0.2.2=1 192.0.2.3=1 2001:db8::1=1"},
		"of both networks":   {[]*index.Endpoint{in("one", "10.0.0.1", 1), in("three", "10.0.0.2", 1)}, index.ServiceView{Through: "one\nthree"}, "192.0.2.1=3 192.0.2.2=1 192.0.2.3=1 2001:db8::1=1"},
		"IPv4 only":          {[]*index.Endpoint{in("three", "10.0.0.2", 1)}, index.ServiceView{Through: "three", Family: index.IPv4}, "192.0.2.2=1 192.0.2.3=1"},
		"no gateway of IPv6": {[]*index.Endpoint{in("one", "10.0.0.2", 1), in("", "10.0.0.3", 1)}, index.ServiceView{Through: "one", Family: index.IPv6}, "10.0.0.3=1"},
		"plain text":         {[]*index.Endpoint{with(in("one", "10.0.0.2", 1), plain)}, index.ServiceView{Through: "one"}, ""},
		"not healthy":        {[]*index.Endpoint{with(in("one", "10.0.0.2", 1), unhealthy), with(in("", "10.0.0.3", 1), unhealthy)}, index.ServiceView{Through: "one"}, "10.0.0.3=1"},
		"one address":        {[]*index.Endpoint{in("a", "10.0.0.1", 1), in("b", "10.0.0.1", 2)}, index.ServiceView{}, "10.0.0.1=1"},
		"no address":         {[]*index.Endpoint{in("a", "", 1), in("one", "", 1)}, index.ServiceView{Through: "one"}, "192.0.2.1=1"},
		"gateway of two":     {[]*index.Endpoint{in("one", "10.0.0.1", 1), in("four", "10.0.0.2", 1)}, index.ServiceView{Through: "four\none"}, "192.0.2.1=2"},
		"localities": {
			[]*index.Endpoint{with(in("one", "10.0.0.1", 1), region("eu")), with(in("one", "10.0.0.2", 2), region("us")), with(in("one", "10.0.0.3", 1), region("eu"))},
			index.ServiceView{Through: "one"}, "192.0.2.1=4@eu",
		},
		"clipped":       {[]*index.Endpoint{in("", "10.0.0.1", math.MaxUint32), in("three", "10.0.0.2", 1)}, index.ServiceView{Through: "three"}, "10.0.0.1=4294967295 192.0.2.2=1 192.0.2.3=1 2001:db8::1=1"},
		"hidden":        {[]*index.Endpoint{in("one", "10.0.0.1", 1), in("", "10.0.0.2", 1)}, index.ServiceView{Hidden: "one"}, "10.0.0.2=1"},
		"cluster local": {[]*index.Endpoint{in("", "10.0.0.1", 1), with(in("", "10.0.0.2", 1), kubernetes)}, index.ServiceView{Cluster: "c1"}, "10.0.0.1=1"},
	} {
		if got := seen(cluster.See(test.endpoints, test.view, gateways)); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

// Proxies of different networks share the assignment of a service if they see the
// same endpoints, and all resources that are not assignments.
func TestNET2SharedBytes(t *testing.T) {
	const world = gatewaysOfTwo + `
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: e, namespace: a}
spec:
  hosts: [split.com]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 10.0.0.1, network: one, serviceAccount: x}, {address: 10.0.0.2}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: f, namespace: a}
spec:
  hosts: [alike.com]
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 10.0.0.1, network: two}, {address: 10.0.0.2}]
`
	pc := meshtest.PushContext(t, meshtest.YAML(t, world)...)
	catalog := xds.NewCatalog(pc)
	view := func(network string) index.ProxyClass {
		p := &proxy.Proxy{
			Type: proxy.Sidecar, Namespace: "a", Labels: map[string]string{"topology.istio.io/network": network},
			Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"SDS_CLUSTER": structpb.NewStringValue(proxy.SDSCluster)}},
		}
		return index.Classify(pc, p)
	}
	one, two, five, none := view("one"), view("two"), view("five"), view("")
	if two != five {
		t.Errorf("proxies of two networks without gateways have different classes: %s, %s", two, five)
	}
	for rt := range ident.ResourceTypes {
		sets := []*xds.Set{catalog.Set(one, rt), catalog.Set(two, rt), catalog.Set(none, rt)}
		if rt != ident.EDS {
			if sets[0] != sets[1] || sets[0] != sets[2] {
				t.Errorf("%s of proxies that differ in their network are not shared", rt)
			}
			continue
		}
		if a, b := sets[0].Find("outbound|80||alike.com"), sets[1].Find("outbound|80||alike.com"); a != b {
			t.Error("proxies that see the same endpoints do not share the assignment")
		}
		if sets[0] != sets[2] {
			t.Error("a proxy of network one does not share the assignments of a proxy without a network")
		}
		if a, b := sets[0].Find("outbound|80||split.com"), sets[1].Find("outbound|80||split.com"); a.Same(b) {
			t.Error("a proxy of network two calls endpoints of network one directly")
		}
	}
	for _, m := range generate[*endpointv3.ClusterLoadAssignment](t, pc, two, ident.EDS) {
		if m.GetClusterName() == "outbound|80||split.com" {
			var all []string
			for _, e := range m.GetEndpoints()[0].GetLbEndpoints() {
				all = append(all, e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress())
			}
			if got := strings.Join(all, " "); got != "10.0.0.2 192.0.2.1" {
				t.Errorf("endpoints for network two: %s", got)
			}
		}
	}
}
