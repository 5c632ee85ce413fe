package validate

import (
	"maps"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/proto"
	mesh "istio.io/api/mesh/v1alpha1"

	"meshlog.dev/services/mesh/problem"
)

// MeshNetworks checks the networks of a mesh (NET-3, NET-4).
func MeshNetworks(m proto.Message) []problem.Diagnostic {
	all := m.(*mesh.MeshNetworks).GetNetworks()
	c := checker{kind: "MeshNetworks"}
	registries, blocks := map[string]string{}, map[netip.Prefix]string{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		at := root.field("networks").entry(name)
		c.errorIf(!isName(name, "-_.", 63), at, "use letters, digits, - _ and ., at most 63, as in labels", "%q is not a network name", name)
		fromRegistry := false
		for i, e := range all[name].GetEndpoints() {
			at := at.field("endpoints").item(i)
			switch {
			case e.GetFromRegistry() != "":
				fromRegistry = true
				c.errorIf(!isHostLabel(e.GetFromRegistry()), at.field("fromRegistry"), "write the name of a cluster, not of a host: "+useName, "%q is not the name of a registry", e.GetFromRegistry())
				once(&c, at.field("fromRegistry"), registries, e.GetFromRegistry(), name)
			case e.GetFromCidr() != "":
				block, err := netip.ParsePrefix(e.GetFromCidr())
				if err != nil {
					c.errorf(at.field("fromCidr"), "write a block like 10.0.0.0/8", "%q is not a CIDR block", e.GetFromCidr())
					continue
				}
				c.overlap(at.field("fromCidr"), blocks, block.Masked(), name)
				once(&c, at.field("fromCidr"), blocks, block.Masked(), name)
			default:
				c.errorf(at, "write fromRegistry or fromCidr", isEmpty)
			}
		}
		for i, g := range all[name].GetGateways() {
			c.networkGateway(at.field("gateways").item(i), g, fromRegistry)
		}
	}
	return c.result()
}

// once checks that a registry or a block belongs to one network.
func once[T comparable](c *checker, at *fieldPath, networks map[T]string, v T, network string) {
	if other, ok := networks[v]; ok {
		c.errorf(at, "leave it in one network", "\"%v\" is in network %q already", v, other)
		return
	}
	networks[v] = network
}

// overlap warns of a block that overlaps with another network's.
func (c *checker) overlap(at *fieldPath, networks map[netip.Prefix]string, block netip.Prefix, network string) {
	var overlaps []string
	for other, name := range networks {
		if name != network && other != block && other.Overlaps(block) {
			overlaps = append(overlaps, name)
		}
	}
	if len(overlaps) > 0 {
		c.warnf(at, "give the networks blocks that do not overlap", "overlaps with a block of network %q: the smaller block takes precedence", slices.Min(overlaps))
	}
}

func (c *checker) networkGateway(at *fieldPath, g *mesh.Network_IstioNetworkGateway, fromRegistry bool) {
	switch {
	case g.GetAddress() != "":
		if !isIP(g.GetAddress()) {
			c.warnf(at.field("address"), "write its IP address", "%q is not an IP address, and meshlog does not resolve names of gateways: the gateway is left out", g.GetAddress())
		}
	case g.GetRegistryServiceName() != "":
		c.host(at.field("registryServiceName"), g.GetRegistryServiceName(), false)
		if !fromRegistry {
			c.warnf(at.field("registryServiceName"), "name the Service's cluster under endpoints: fromRegistry", "the network names no cluster that could have the Service: the gateway is left out")
		}
	default:
		c.errorf(at, "write address or registryServiceName", isEmpty)
	}
	c.port(at.field("port"), g.GetPort())
	c.noEffect(g.GetLocality() != "", at.field("locality"))
}
