package validate

import (
	"net/netip"
	"slices"

	"google.golang.org/protobuf/proto"
	mesh "istio.io/api/mesh/v1alpha1"

	"meshlog.dev/services/mesh/problem"
)

// validateMeshNetworks checks what the networks of a mesh say (NET-3, NET-4).
func MeshNetworks(m proto.Message) []problem.Problem {
	all := m.(*mesh.MeshNetworks).GetNetworks()
	c := checker{}
	registries, blocks := map[string]string{}, map[netip.Prefix]string{}
	for _, name := range sortedKeys(all) {
		at := root.field("networks").entry(name)
		if !isName(name, "-_.", 63) {
			c.at(at, "use letters, digits, - _ and ., at most 63, as in labels", "%q is no name of a network", name)
		}
		fromRegistry := false
		for i, e := range all[name].GetEndpoints() {
			at := at.field("endpoints").item(i)
			switch {
			case e.GetFromRegistry() != "":
				fromRegistry = true
				c.once(at.field("fromRegistry"), registries, e.GetFromRegistry(), name)
			case e.GetFromCidr() != "":
				block, err := netip.ParsePrefix(e.GetFromCidr())
				if err != nil {
					c.at(at.field("fromCidr"), "write a block like 10.0.0.0/8", "%q is no CIDR block", e.GetFromCidr())
					continue
				}
				c.overlap(at.field("fromCidr"), blocks, block.Masked(), name)
			default:
				c.at(at, "write fromRegistry or fromCidr", "says nothing")
			}
		}
		for i, g := range all[name].GetGateways() {
			c.networkGateway(at.field("gateways").item(i), g, fromRegistry)
		}
	}
	c.noEffect("MeshNetworks", m)
	return c.result()
}

// once checks that a registry is of one network.
func (c *checker) once(at *fieldPath, networks map[string]string, registry, network string) {
	if other, ok := networks[registry]; ok {
		c.at(at, "leave it in one network", "%q is in network %q already", registry, other)
		return
	}
	networks[registry] = network
}

// overlap checks that a block is of one network.
func (c *checker) overlap(at *fieldPath, networks map[netip.Prefix]string, block netip.Prefix, network string) {
	if other, ok := networks[block]; ok {
		c.at(at, "leave it in one network", "%s is in network %q already", block, other)
		return
	}
	var overlaps []string
	for other, name := range networks {
		if name != network && other.Overlaps(block) {
			overlaps = append(overlaps, name)
		}
	}
	if len(overlaps) > 0 {
		c.warn(at, "let the blocks of networks not overlap", "overlaps with a block of network %q: the smaller one counts", slices.Min(overlaps))
	}
	networks[block] = network
}

func (c *checker) networkGateway(at *fieldPath, g *mesh.Network_IstioNetworkGateway, fromRegistry bool) {
	switch {
	case g.GetAddress() != "":
		if !isIP(g.GetAddress()) {
			c.warn(at.field("address"), "write its IP address", "%q is no IP address, and names of gateways are not resolved: it is left out", g.GetAddress())
		}
	case g.GetRegistryServiceName() != "":
		c.host(at.field("registryServiceName"), g.GetRegistryServiceName(), false)
		if !fromRegistry {
			c.warn(at.field("registryServiceName"), "name the cluster of the Service under endpoints: fromRegistry", "the network has no cluster in which the Service could be: it is left out")
		}
	default:
		c.at(at, "write address or registryServiceName", "says nothing")
	}
	c.port(at.field("port"), g.GetPort())
}
