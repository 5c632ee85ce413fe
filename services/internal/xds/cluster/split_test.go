package cluster_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"meshlog.dev/services/internal/model"
	"meshlog.dev/services/internal/model/modeltest"
	"meshlog.dev/services/internal/xds"
	"meshlog.dev/services/internal/xds/cluster"
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

// seen is endpoints as text: address and weight of each.
func seen(endpoints []*model.Endpoint) string {
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
	pc := modeltest.PushContext(t, modeltest.YAML(t, gatewaysOfTwo)...)
	gateways := pc.Read().NetworkGateways()
	in := func(network, address string, weight uint32) *model.Endpoint {
		return &model.Endpoint{Address: address, Port: 80, Network: network, Weight: weight, MutualTLS: true}
	}
	with := func(e *model.Endpoint, change func(*model.Endpoint)) *model.Endpoint {
		change(e)
		return e
	}
	plain := func(e *model.Endpoint) { e.MutualTLS = false }
	unhealthy := func(e *model.Endpoint) { e.Health = model.Unhealthy }
	region := func(r string) func(e *model.Endpoint) {
		return func(e *model.Endpoint) { e.Locality.Region = r }
	}
	kubernetes := func(e *model.Endpoint) { e.ClusterID, e.Kubernetes = "c2", true }
	for name, test := range map[string]struct {
		endpoints []*model.Endpoint
		view      model.ServiceView
		want      string
	}{
		"as they are":        {[]*model.Endpoint{in("", "10.0.0.1", 1), in("one", "10.0.0.2", 2)}, model.ServiceView{}, "10.0.0.1=1 10.0.0.2=2"},
		"one gateway":        {[]*model.Endpoint{in("", "10.0.0.1", 1), in("one", "10.0.0.2", 2), in("one", "10.0.0.3", 3)}, model.ServiceView{Through: "one"}, "10.0.0.1=1 192.0.2.1=5"},
		"three gateways":     {[]*model.Endpoint{in("one", "10.0.0.1", 2), in("three", "10.0.0.2", 1)}, model.ServiceView{Through: "three"}, "10.0.0.1=6 192.0.2.2=1 192.0.2.3=1 2001:db8::1=1"},
		"of both networks":   {[]*model.Endpoint{in("one", "10.0.0.1", 1), in("three", "10.0.0.2", 1)}, model.ServiceView{Through: "one\nthree"}, "192.0.2.1=3 192.0.2.2=1 192.0.2.3=1 2001:db8::1=1"},
		"IPv4 only":          {[]*model.Endpoint{in("three", "10.0.0.2", 1)}, model.ServiceView{Through: "three", Family: model.IPv4}, "192.0.2.2=1 192.0.2.3=1"},
		"no gateway of IPv6": {[]*model.Endpoint{in("one", "10.0.0.2", 1), in("", "10.0.0.3", 1)}, model.ServiceView{Through: "one", Family: model.IPv6}, "10.0.0.3=1"},
		"plain text":         {[]*model.Endpoint{with(in("one", "10.0.0.2", 1), plain)}, model.ServiceView{Through: "one"}, ""},
		"not healthy":        {[]*model.Endpoint{with(in("one", "10.0.0.2", 1), unhealthy), with(in("", "10.0.0.3", 1), unhealthy)}, model.ServiceView{Through: "one"}, "10.0.0.3=1"},
		"one address":        {[]*model.Endpoint{in("a", "10.0.0.1", 1), in("b", "10.0.0.1", 2)}, model.ServiceView{}, "10.0.0.1=1"},
		"no address":         {[]*model.Endpoint{in("a", "", 1), in("one", "", 1)}, model.ServiceView{Through: "one"}, "192.0.2.1=1"},
		"gateway of two":     {[]*model.Endpoint{in("one", "10.0.0.1", 1), in("four", "10.0.0.2", 1)}, model.ServiceView{Through: "four\none"}, "192.0.2.1=2"},
		"localities": {
			[]*model.Endpoint{with(in("one", "10.0.0.1", 1), region("eu")), with(in("one", "10.0.0.2", 2), region("us")), with(in("one", "10.0.0.3", 1), region("eu"))},
			model.ServiceView{Through: "one"}, "192.0.2.1=4@eu",
		},
		"clipped":       {[]*model.Endpoint{in("", "10.0.0.1", math.MaxUint32), in("three", "10.0.0.2", 1)}, model.ServiceView{Through: "three"}, "10.0.0.1=4294967295 192.0.2.2=1 192.0.2.3=1 2001:db8::1=1"},
		"hidden":        {[]*model.Endpoint{in("one", "10.0.0.1", 1), in("", "10.0.0.2", 1)}, model.ServiceView{Hidden: "one"}, "10.0.0.2=1"},
		"cluster local": {[]*model.Endpoint{in("", "10.0.0.1", 1), with(in("", "10.0.0.2", 1), kubernetes)}, model.ServiceView{Cluster: "c1"}, "10.0.0.1=1"},
	} {
		if got := seen(cluster.See(test.endpoints, test.view, gateways)); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

// Proxies of all networks share the assignment of a service that they see alike,
// and everything but the assignments of those that they do not.
func TestNET2SharedBytes(t *testing.T) {
	const world = gatewaysOfTwo + `
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: e, namespace: a}
spec:
  hosts: [split.com]
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
	pc := modeltest.PushContext(t, modeltest.YAML(t, world)...)
	catalog := xds.NewCatalog(pc)
	view := func(network string) model.ProxyClass {
		p := &model.Proxy{Type: model.Sidecar, Namespace: "a", Labels: map[string]string{"topology.istio.io/network": network}}
		return model.Classify(pc, p)
	}
	one, two, five, none := view("one"), view("two"), view("five"), view("")
	if two != five {
		t.Errorf("networks without gateways are of two classes: %s, %s", two, five)
	}
	for rt := range model.ResourceTypes {
		sets := []*xds.Set{catalog.Set(one, rt), catalog.Set(two, rt), catalog.Set(none, rt)}
		if rt != model.EDS {
			if sets[0] != sets[1] || sets[0] != sets[2] {
				t.Errorf("%s of proxies that differ in their network are not shared", rt)
			}
			continue
		}
		if a, b := sets[0].Find("outbound|80||alike.com"), sets[1].Find("outbound|80||alike.com"); a != b {
			t.Error("the endpoints of a service that all see alike are not shared")
		}
		if sets[0] != sets[2] {
			t.Error("from network one, all is called as from nowhere")
		}
		if a, b := sets[0].Find("outbound|80||split.com"), sets[1].Find("outbound|80||split.com"); a.Same(b) {
			t.Error("network one is entered without its gateway")
		}
	}
	for _, m := range generate[*endpointv3.ClusterLoadAssignment](t, pc, two, model.EDS) {
		if m.GetClusterName() == "outbound|80||split.com" {
			var all []string
			for _, e := range m.GetEndpoints()[0].GetLbEndpoints() {
				all = append(all, e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress())
			}
			if got := strings.Join(all, " "); got != "10.0.0.2 192.0.2.1" {
				t.Errorf("from network two: %s", got)
			}
		}
	}
}
