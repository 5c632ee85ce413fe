package index

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/hostname"
	"meshlog.dev/services/mesh/problem"
)

// NetworkGateway is an entrance to a network from others (NET-3).
type NetworkGateway struct {
	Network string
	// Cluster of its Service; empty: none.
	Cluster string
	Address netip.Addr
	Port    uint32
}

// Compare orders gateways.
func (g NetworkGateway) Compare(o NetworkGateway) int {
	return cmp.Or(cmp.Compare(g.Network, o.Network), g.Address.Compare(o.Address), cmp.Compare(g.Port, o.Port), cmp.Compare(g.Cluster, o.Cluster))
}

// NetworkGateways are the gateways of all networks; nil: none. Immutable.
type NetworkGateways struct {
	sorted    []NetworkGateway
	byNetwork map[string][]NetworkGateway
}

// Of returns the gateways to endpoints of a cluster in a network: those of that
// cluster if it has any, else all of the network. Sorted.
func (g *NetworkGateways) Of(network, cluster string) []NetworkGateway {
	if g == nil {
		return nil
	}
	all := g.byNetwork[network]
	var own []NetworkGateway
	for _, one := range all {
		if one.Cluster == cluster {
			own = append(own, one)
		}
	}
	if len(own) > 0 {
		return own
	}
	return all
}

// FamilyOf returns the family of an address.
func FamilyOf(ip netip.Addr) Family {
	if ip.Is4() || ip.Is4In6() {
		return IPv4
	}
	return IPv6
}

// has reports whether a network has a gateway.
func (g *NetworkGateways) has(network string) bool { return len(g.byNetwork[network]) > 0 }

// networks returns the networks with gateways, sorted.
func (g *NetworkGateways) networks() []string { return slices.Sorted(maps.Keys(g.byNetwork)) }

func newNetworkGateways(all []NetworkGateway) NetworkGateways {
	slices.SortFunc(all, NetworkGateway.Compare)
	g := NetworkGateways{sorted: slices.Compact(all), byNetwork: make(map[string][]NetworkGateway)}
	for _, one := range g.sorted {
		g.byNetwork[one.Network] = append(g.byNetwork[one.Network], one)
	}
	return g
}

// Labels of Services that are gateways, and the default port.
const (
	gatewayPortLabel   = "networking.istio.io/gatewayPort"
	defaultGatewayPort = 15443
)

// entrance is a Service that may be the gateway of a network: by its label, or
// because MeshNetworks names its host. Immutable.
type entrance struct {
	ident.Key
	host    string
	service *registryv1.Service
}

// networkPort is a port through which a network is entered.
type networkPort struct {
	network string
	port    uint32
}

// newEntrance returns nil for a Service that cannot be reached from outside.
func (s *settings) newEntrance(k ident.Key, m *registryv1.Service) *entrance {
	if m.GetLabels()[networkLabel] == "" && m.GetNodeSelector() == nil && len(m.GetExternalAddresses()) == 0 {
		return nil
	}
	return &entrance{k, hostname.OfService(k, m, s.domainSuffix), m}
}

// entered returns the networks that a Service leads to. Its label wins over
// MeshNetworks.
func (x *networkIndex) entered(e *entrance) []networkPort {
	if network := e.service.GetLabels()[networkLabel]; network != "" {
		return []networkPort{{network, cmp.Or(e.labelledPort(), defaultGatewayPort)}}
	}
	network := x.registries[e.Instance]
	var ports []networkPort
	for _, g := range x.mesh.GetNetworks()[network].GetGateways() {
		if g.GetRegistryServiceName() == e.host {
			ports = append(ports, networkPort{network, g.GetPort()})
		}
	}
	return ports
}

// labelledPort returns the port of the gateway's label; 0: none, or it is no
// port.
func (e *entrance) labelledPort() uint32 {
	n, err := strconv.ParseUint(e.service.GetLabels()[gatewayPortLabel], 10, 16)
	if err != nil {
		return 0
	}
	return uint32(n)
}

// nodePort returns the port of the nodes that leads to a port; 0: none.
func (e *entrance) nodePort(port uint32) (nodePort uint32) {
	for _, p := range e.service.GetPorts() {
		if p.GetNumber() == port {
			nodePort = cmp.Or(p.GetNodePort(), nodePort)
		}
	}
	return nodePort
}

// doneGateways recomputes the gateways: there are few.
func (e *networkEdit) doneGateways(x *networkIndex) {
	all := x.addresses()
	for k := range e.from.entrances.All() {
		e.problem(about{"network gateway", "", k.Row()}, nil)
	}
	for k, s := range x.entrances.All() {
		var problems []problem.Diagnostic
		for _, p := range x.entered(s) {
			gateways, ds := x.addressed(s, p)
			all, problems = append(all, gateways...), append(problems, ds...)
		}
		e.problem(about{"network gateway", "", k.Row()}, problems)
	}
	x.gateways = newNetworkGateways(all)
	if !slices.Equal(x.gateways.sorted, e.from.gateways.sorted) {
		e.changed(Input{Kind: InputNetworks})
		e.reclassify(true)
	}
}

// addresses returns the gateways that MeshNetworks names by address.
func (x *networkIndex) addresses() []NetworkGateway {
	var all []NetworkGateway
	for network, n := range x.mesh.GetNetworks() {
		for _, g := range n.GetGateways() {
			if ip, err := netip.ParseAddr(g.GetAddress()); err == nil {
				all = append(all, NetworkGateway{Network: network, Address: ip.Unmap(), Port: g.GetPort()})
			}
		}
	}
	return all
}

// addressed returns the gateways that a Service is for a network.
func (x *networkIndex) addressed(s *entrance, p networkPort) (all []NetworkGateway, ds []problem.Diagnostic) {
	report := func(field, reason, advice, effect string) {
		ds = append(ds, problem.Diagnostic{Severity: problem.Warning, Code: "no-gateway", Key: s.Key, Field: field, Reason: reason, Advice: advice, Effect: effect})
	}
	add := func(address string, port uint32) {
		if ip, err := netip.ParseAddr(address); err == nil {
			all = append(all, NetworkGateway{Network: p.network, Cluster: s.Instance, Address: ip.Unmap(), Port: port})
			return
		}
		report("status.loadBalancer.ingress", fmt.Sprintf("%q is no IP address, and names of gateways are not resolved", address),
			"give the load balancer a fixed IP address and name it in spec.externalIPs", "proxies of other networks do not use it")
	}
	labels := s.service.GetLabels()
	if text := labels[gatewayPortLabel]; text != "" && labels[networkLabel] != "" && s.labelledPort() == 0 {
		report("metadata.labels["+gatewayPortLabel+"]", fmt.Sprintf("%q is no port", text),
			"use a port from 1 to 65535", fmt.Sprintf("port %d is used", p.port))
	}
	for _, a := range s.service.GetExternalAddresses() {
		add(a, p.port)
	}
	switch nodePort := s.nodePort(p.port); {
	case s.service.GetNodeSelector() == nil:
	case nodePort == 0:
		report("spec.ports", fmt.Sprintf("port %d of the gateway of network %s has no nodePort", p.port, p.network),
			"add the port, with a nodePort", "proxies of other networks do not use it")
	default:
		for k, n := range x.nodes.All() {
			if k.Shard() != s.Shard() || !matchLabels(s.service.GetNodeSelector().GetLabels(), n.labels) {
				continue
			}
			for _, a := range n.addresses {
				add(a, nodePort)
			}
		}
	}
	if len(all) == 0 && len(ds) == 0 {
		report("metadata.labels["+networkLabel+"]", "the gateway of network "+p.network+" has no address outside its cluster",
			"use type LoadBalancer, spec.externalIPs, or type NodePort with the annotation traffic.istio.io/nodeSelector",
			"it is no gateway; proxies of other networks call the endpoints directly if there is no other one")
	}
	return all, ds
}
