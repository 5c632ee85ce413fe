package meshtest

import (
	"encoding/json"

	"google.golang.org/protobuf/types/known/structpb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/proxy"
)

// The labels for an object's network, and for the port of a network's gateway.
const (
	networkLabel     = "topology.istio.io/network"
	gatewayPortLabel = "networking.istio.io/gatewayPort"
)

// Namespace puts a Namespace with these labels.
func Namespace(name string, labels map[string]string) Change {
	return Object("Namespace", "", name, object(labels, nil))
}

// Node puts a Node with these labels and external IPs.
func Node(name string, labels map[string]string, externalIPs ...string) Change {
	return Object("Node", "", name, object(labels, externalIPs))
}

func object(labels map[string]string, externalIPs []string) *registryv1.Object {
	o := map[string]any{"metadata": map[string]any{"labels": labels}}
	if len(externalIPs) > 0 {
		o["externalIPs"] = externalIPs
	}
	b, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	return &registryv1.Object{Json: b}
}

var anyNetwork = []string{"", "n1", "n2", "n3"}

// network changes networks, or the gateways between them.
func (d dice) network() Change {
	switch d.IntN(5) {
	case 0:
		return Namespace(throw(d, AnyNamespace), d.networkLabels())
	case 1:
		return Node(throw(d, AnyName), throw(d, AnyLabels), throw(d, [][]string{nil, {"192.0.2.7"}, {"192.0.2.8", "2001:db8::8"}})...)
	case 2:
		return Object("MeshNetworks", "", "default", d.meshNetworks())
	case 3:
		e := &networking.WorkloadEntry{
			Labels: throw(d, AnyLabels), Network: throw(d, anyNetwork), ServiceAccount: throw(d, []string{"", "sa"}),
		}
		if e.GetNetwork() == "" || d.oneIn(2) {
			e.Address = "10.1.0.1"
		}
		return Object("WorkloadEntry", throw(d, AnyNamespace), throw(d, AnyName), e)
	}
	s := &registryv1.Service{
		Labels: d.networkLabels(), ExternalAddresses: throw(d, [][]string{nil, {"192.0.2.1"}, {"192.0.2.1", "gw.h.com", "2001:db8::1"}}),
		Ports: []*registryv1.ServicePort{{Number: 15443, Name: "tls", NodePort: uint32(31000 * d.IntN(2))}},
	}
	if d.oneIn(3) {
		s.NodeSelector = &registryv1.NodeSelector{Labels: throw(d, AnyLabels)}
	}
	return Object("Service", throw(d, AnyNamespace), throw(d, AnyName), s)
}

func (d dice) networkLabels() map[string]string {
	labels := map[string]string{}
	if n := throw(d, anyNetwork); n != "" {
		labels[networkLabel] = n
	}
	if d.oneIn(4) {
		labels[gatewayPortLabel] = throw(d, []string{"15444", "x"})
	}
	return labels
}

func (d dice) meshNetworks() *meshconfig.MeshNetworks {
	m := &meshconfig.MeshNetworks{Networks: map[string]*meshconfig.Network{}}
	for _, name := range anyNetwork[1:] {
		if d.oneIn(2) {
			continue
		}
		n := &meshconfig.Network{}
		switch d.IntN(3) {
		case 0:
			n.Endpoints = append(n.Endpoints, &meshconfig.Network_NetworkEndpoints{
				Ne: &meshconfig.Network_NetworkEndpoints_FromCidr{FromCidr: throw(d, []string{"10.1.0.0/16", "10.1.0.1/32", "10.4.0.0/24"})},
			})
		case 1:
			n.Endpoints = append(n.Endpoints, &meshconfig.Network_NetworkEndpoints{
				Ne: &meshconfig.Network_NetworkEndpoints_FromRegistry{FromRegistry: throw(d, []string{"one", "two", "default"})},
			})
		}
		switch d.IntN(3) {
		case 0:
			n.Gateways = append(n.Gateways, &meshconfig.Network_IstioNetworkGateway{
				Gw: &meshconfig.Network_IstioNetworkGateway_Address{Address: throw(d, []string{"192.0.2.9", "gw.h.com"})}, Port: 15443,
			})
		case 1:
			n.Gateways = append(n.Gateways, &meshconfig.Network_IstioNetworkGateway{
				Gw: &meshconfig.Network_IstioNetworkGateway_RegistryServiceName{RegistryServiceName: throw(d, AnyHost)}, Port: 15443,
			})
		}
		m.Networks[name] = n
	}
	return m
}

// networkProxies returns proxies of all clusters and networks.
func networkProxies() []*proxy.Proxy {
	var all []*proxy.Proxy
	for _, cluster := range []string{"one", "two", "three"} {
		for _, network := range anyNetwork {
			for _, ip := range []string{"10.9.0.1", "2001:db8::9"} {
				metadata := map[string]*structpb.Value{"NETWORK": structpb.NewStringValue(network)}
				if network == "n3" {
					metadata["REQUESTED_NETWORK_VIEW"] = structpb.NewStringValue("n1,n3")
				}
				all = append(all, &proxy.Proxy{
					ID: "sidecar~" + ip + "~x.a~a.svc.cluster.local", Type: proxy.Sidecar, Namespace: "elsewhere", ClusterID: cluster,
					Metadata: &structpb.Struct{Fields: metadata},
				})
			}
		}
	}
	return append(all, &proxy.Proxy{GRPC: true, Namespace: "elsewhere", Labels: map[string]string{networkLabel: "n1"}})
}
