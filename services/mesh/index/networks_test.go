package index_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/structpb"
	networking "istio.io/api/networking/v1alpha3"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/index"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
)

func inCluster(cluster string, c Change) Change { return c.From("kubernetes").In(cluster) }

func systemNetwork(network string) Change {
	return Namespace("istio-system", map[string]string{"topology.istio.io/network": network})
}

const meshNetworks = `
apiVersion: mesh.istio.io/v1alpha1
kind: MeshNetworks
metadata: {name: default}
spec:
  networks:
`

// networks returns the networks of a port's endpoints.
func networks(pc *index.PushContext, id index.ServiceID, port uint32) string {
	var all []string
	for _, e := range pc.Read().Endpoints(id)[port] {
		all = append(all, strings.TrimSpace(e.Address+" "+e.Network))
	}
	return strings.Join(all, ", ")
}

// A workload's own network wins over that of its cluster, and both win over
// MeshNetworks. There the registry wins over CIDR blocks, and of the blocks with the
// address the smallest one (NET-4).
func TestNET4NetworkOfAWorkload(t *testing.T) {
	service := inCluster("c1", Service("a", "x", "80 http"))
	slice := func(network string) Change {
		return inCluster("c1", Object("EndpointSlice", "a", "x", &registryv1.Endpoints{
			Service: "x", Ports: []*registryv1.EndpointPort{{Name: "http", Number: 80}},
			Endpoints: []*registryv1.Endpoint{{Addresses: []string{"10.1.2.3"}, Network: network}},
		}))
	}
	const registry, block = "    net2: {endpoints: [{fromRegistry: c1}]}\n", "    net3: {endpoints: [{fromCidr: 10.0.0.0/8}]}\n    net4: {endpoints: [{fromCidr: 10.1.0.0/16}]}\n"
	id := index.ServiceID{Namespace: "a", Hostname: "x.a.svc.cluster.local"}
	for _, test := range []struct {
		pod, namespace, mesh string
		want                 string
	}{
		{"net0", "net1", meshNetworks + registry + block, "net0"},
		{"", "net1", meshNetworks + registry + block, "net1"},
		{"", "", meshNetworks + registry + block, "net2"},
		{"", "", meshNetworks + block, "net4"},
		{"", "", "", ""},
	} {
		all := []Change{service, slice(test.pod), inCluster("c2", systemNetwork("other"))}
		if test.namespace != "" {
			all = append(all, inCluster("c1", systemNetwork(test.namespace)))
		}
		if test.mesh != "" {
			all = append(all, YAML(t, test.mesh)...)
		}
		pc := PushContext(t, all...)
		if got, want := networks(pc, id, 80), strings.TrimSpace("10.1.2.3 "+test.want); got != want {
			t.Errorf("%+v: %s, want %s", test, got, want)
		}
	}
}

// The network label of a cluster changes the endpoints of that cluster, and those
// of other services that select its workloads (NET-4).
func TestNET4NetworkChanges(t *testing.T) {
	pod := Object("Pod", "a", "p", &registryv1.Workload{Addresses: []string{"10.1.0.9"}, Labels: map[string]string{"app": "x"}})
	w := World(t,
		inCluster("c1", Service("a", "x", "80 http")), inCluster("c1", Slice("a", "x", "80 http", "10.1.0.1")),
		inCluster("c2", Service("a", "y", "80 http")), inCluster("c2", Slice("a", "y", "80 http", "10.2.0.1")),
		inCluster("c1", pod),
		Object("ServiceEntry", "a", "e", &networking.ServiceEntry{
			Hosts: []string{"e.com"}, Resolution: networking.ServiceEntry_STATIC, Ports: []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
			WorkloadSelector: &networking.WorkloadSelector{Labels: map[string]string{"app": "x"}},
		}),
	)
	pc := index.NewPushContext(w)
	next, keys, err := w.Apply(Rows(inCluster("c1", systemNetwork("net1"))))
	if err != nil {
		t.Fatal(err)
	}
	after, changed := pc.Next(next, keys)
	want := []index.Input{
		{Kind: index.InputEndpoints, A: "a", B: "e.com"}, {Kind: index.InputEndpoints, A: "a", B: "x.a.svc.cluster.local"}, {Kind: index.InputSpread},
	}
	if diff := cmp.Diff(want, changed); diff != "" {
		t.Errorf("changed (-want +got):\n%s", diff)
	}
	for host, want := range map[string]string{"x.a.svc.cluster.local": "10.1.0.1 net1", "y.a.svc.cluster.local": "10.2.0.1", "e.com": "10.1.0.9 net1"} {
		if got := networks(after, index.ServiceID{Namespace: "a", Hostname: host}, 80); got != want {
			t.Errorf("%s: %s, want %s", host, got, want)
		}
	}
}

func gateways(pc *index.PushContext, network, cluster string) string {
	var all []string
	for _, g := range pc.Read().NetworkGateways().Of(network, cluster) {
		all = append(all, fmt.Sprintf("%s:%d %s", g.Address, g.Port, g.Cluster))
	}
	return strings.Join(all, ", ")
}

// Gateways are Services with the network label, Services that MeshNetworks names by
// host in the clusters of a network, and addresses in MeshNetworks. Gateways of an
// endpoint's own cluster win over the others of its network (NET-3).
func TestNET3Gateways(t *testing.T) {
	service := func(labels map[string]string, addresses ...string) *registryv1.Service {
		return &registryv1.Service{
			Labels: labels, ExternalAddresses: addresses, Ports: []*registryv1.ServicePort{{Number: 15443, Name: "tls", NodePort: 31000}},
		}
	}
	network := func(name string) map[string]string { return map[string]string{"topology.istio.io/network": name} }
	nodePort := service(network("net3"))
	nodePort.NodeSelector = &registryv1.NodeSelector{Labels: map[string]string{"edge": "yes"}}
	all := []Change{
		inCluster("c1", Object("Service", "istio-system", "gw", service(network("net1"), "192.0.2.1", "gw.example.com"))),
		inCluster("c2", Object("Service", "istio-system", "gw", service(network("net1"), "192.0.2.2"))),
		inCluster("c3", Object("Service", "istio-system", "named", service(nil, "192.0.2.3"))),
		inCluster("c1", Object("Service", "istio-system", "named", service(nil, "192.0.2.4"))), // no gateway: net2 does not have c1
		inCluster("c4", Object("Service", "istio-system", "nodes", nodePort)),
		inCluster("c4", Node("n1", map[string]string{"edge": "yes"}, "192.0.2.5")),
		inCluster("c4", Node("n2", nil, "192.0.2.6")),
		inCluster("c5", Node("n1", map[string]string{"edge": "yes"}, "192.0.2.7")),
	}
	all = append(all, YAML(t, meshNetworks+`
    net2:
      endpoints: [{fromRegistry: c3}]
      gateways:
      - {registryServiceName: named.istio-system.svc.cluster.local, port: 15444}
      - {address: 192.0.2.8, port: 15443}
      - {address: gw.example.com, port: 15443}
`)...)
	w := World(t, all...)
	pc := index.NewPushContext(w)
	for _, test := range []struct{ network, cluster, want string }{
		{"net1", "c1", "192.0.2.1:15443 c1"},
		{"net1", "c2", "192.0.2.2:15443 c2"},
		{"net1", "c9", "192.0.2.1:15443 c1, 192.0.2.2:15443 c2"},
		{"net2", "", "192.0.2.8:15443 "}, // endpoint and gateway both have no cluster
		{"net2", "c3", "192.0.2.3:15444 c3"},
		{"net2", "c9", "192.0.2.3:15444 c3, 192.0.2.8:15443 "},
		{"net3", "c4", "192.0.2.5:31000 c4"},
		{"net4", "c4", ""},
	} {
		if got := gateways(pc, test.network, test.cluster); got != test.want {
			t.Errorf("%s of %s: %s, want %s", test.network, test.cluster, got, test.want)
		}
	}
	var problems []string
	for _, d := range pc.Diagnostics() {
		if d.Code == "no-gateway" {
			problems = append(problems, d.Key.Name+": "+d.Reason)
		}
	}
	if diff := cmp.Diff([]string{`gw: "gw.example.com" is no IP address, and names of gateways are not resolved`}, problems); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	next, keys, err := w.Apply(Rows(inCluster("c4", Node("n1", nil)).Gone()))
	if err != nil {
		t.Fatal(err)
	}
	after, changed := pc.Next(next, keys)
	if got := gateways(after, "net3", "c4"); got != "" || !slices.Equal(changed, []index.Input{{Kind: index.InputNetworks}}) || after.SameClasses(pc) {
		t.Errorf("without the node: %s; changed %v", got, changed)
	}
}

// A gateway with an invalid port has the default port. A Service with a node
// selector but no nodePort is no gateway, nor is one without address; both are
// reported (NET-3).
func TestNET3BadGateways(t *testing.T) {
	labels := map[string]string{"topology.istio.io/network": "net1", "networking.istio.io/gatewayPort": "x"}
	pc := PushContext(t, Object("Service", "a", "x", &registryv1.Service{Labels: labels, ExternalAddresses: []string{"192.0.2.1"}, Ports: []*registryv1.ServicePort{{Number: 15443}}}))
	if got := gateways(pc, "net1", ""); got != "192.0.2.1:15443 default" {
		t.Errorf("gateways %s", got)
	}
	delete(labels, "networking.istio.io/gatewayPort")
	for name, s := range map[string]*registryv1.Service{
		"spec.ports": {Labels: labels, NodeSelector: &registryv1.NodeSelector{}, Ports: []*registryv1.ServicePort{{Number: 80}}},
		"metadata.labels[topology.istio.io/network]": {Labels: labels, Ports: []*registryv1.ServicePort{{Number: 15443}}},
	} {
		pc := PushContext(t, Object("Service", "a", "x", s), Node("n", nil, "192.0.2.2"))
		if got := gateways(pc, "net1", ""); got != "" {
			t.Errorf("%s: gateways %s", name, got)
		}
		expectProblems(t, pc, "x ("+name+"): no-gateway")
	}
}

// The class of a proxy depends on its network only if networks have gateways, and
// on its cluster only if there are several clusters.
func TestNET2ClassesOfNetworks(t *testing.T) {
	node := func(cluster, network, ip string) *proxy.Proxy {
		return &proxy.Proxy{
			ID: "sidecar~" + ip + "~x.a~a.svc.cluster.local", Type: proxy.Sidecar, Namespace: "a", ClusterID: cluster,
			Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"NETWORK": structpb.NewStringValue(network)}},
		}
	}
	view := func(pc *index.PushContext, p *proxy.Proxy) index.EndpointView { return index.Classify(pc, p).EDS.View }
	one := []Change{inCluster("c1", Service("a", "x", "80 http")), inCluster("c1", Slice("a", "x", "80 http", "10.1.0.1")), inCluster("c1", systemNetwork("net1"))}
	pc := PushContext(t, one...)
	for _, p := range []*proxy.Proxy{node("c1", "", "10.1.0.9"), node("c2", "net2", "10.1.0.9"), node("", "", "")} {
		if v := view(pc, p); v != (index.EndpointView{}) {
			t.Errorf("with one network and no gateway the view is %+v, want none", v)
		}
	}
	gateway := &registryv1.Service{Labels: map[string]string{"topology.istio.io/network": "net2"}, ExternalAddresses: []string{"192.0.2.1", "2001:db8::1"}}
	two := append(one, inCluster("c2", Object("Service", "a", "gw", gateway)))
	pc = PushContext(t, two...)
	for _, test := range []struct {
		proxy *proxy.Proxy
		want  index.EndpointView
	}{
		{node("c1", "", "10.1.0.9"), index.EndpointView{Cluster: "c1", Network: "~", Family: index.IPv4}},
		{node("c2", "net2", "fd00::9"), index.EndpointView{Cluster: "c2", Network: "net2", Family: index.IPv6}},
		{node("c3", "net2", ""), index.EndpointView{Network: "net2"}},
		{node("c3", "", "10.1.0.9"), index.EndpointView{}},
	} {
		if diff := cmp.Diff(test.want, view(pc, test.proxy)); diff != "" {
			t.Errorf("%s %v (-want +got):\n%s", test.proxy.ClusterID, test.proxy.Metadata, diff)
		}
	}
	x := index.ServiceID{Namespace: "a", Hostname: "x.a.svc.cluster.local"}
	for network, want := range map[string]index.ServiceView{"net2": {}, "~": {}} { // net1 has no gateway, so all call its endpoints directly
		if got := pc.Read().Views(index.EndpointView{Network: network}).Of(x); got != want {
			t.Errorf("seen from %s: %+v", network, got)
		}
	}
}
