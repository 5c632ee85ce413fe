package registry

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/permit"
)

// portsMost is how many distinct ports of instances become ports of the service.
const portsMost = 8

// manyPorts is the port of a service whose instances have more.
const manyPorts = 80

// ports returns the ports that clients call, sorted by number (REG-4), and warnings.
// Proxies send the requests of a port to every instance, each at its own port; those of a
// named port go to the instances' port of that name.
func (s *Settings) ports(v *Service, protocol string) (ports []*registryv1.ServicePort, warnings []string) {
	numbers, many := s.numbers(v)
	if many != "" {
		warnings = append(warnings, many)
	}
	taken := map[uint32]bool{}
	for _, n := range numbers {
		ports = append(ports, &registryv1.ServicePort{Number: n, Name: portName(protocol, n, len(numbers) > 1)})
		taken[n] = true
	}
	for _, p := range namedPorts(v.Instances) {
		if taken[p.Number] {
			warnings = append(warnings, fmt.Sprintf("port %q has the number %d, which another port of the service has: it is left out", p.Name, p.Number))
			continue
		}
		taken[p.Number] = true
		ports = append(ports, &registryv1.ServicePort{Number: p.Number, Name: p.Name, AppProtocol: p.Protocol})
	}
	slices.SortFunc(ports, func(a, b *registryv1.ServicePort) int { return int(a.GetNumber()) - int(b.GetNumber()) })
	return ports, warnings
}

// numbers returns the numbers of the ports that have no names of their own, and a warning
// if there are too many.
func (s *Settings) numbers(v *Service) ([]uint32, string) {
	for _, r := range s.Ports {
		if permit.Match(r.Services, v.Name) {
			return []uint32{r.Port}, ""
		}
	}
	distinct := map[uint32]bool{}
	for _, in := range v.Instances {
		if in.Port != 0 {
			distinct[in.Port] = true
		}
	}
	if len(distinct) > portsMost {
		return []uint32{manyPorts}, fmt.Sprintf("the instances have %d different ports: clients call port %d", len(distinct), manyPorts)
	}
	return slices.Sorted(maps.Keys(distinct)), ""
}

// namedPorts returns the named ports of instances, sorted by name. Each has the number that
// most instances give it, and the lowest if several are given equally often.
func namedPorts(instances []Instance) []NamedPort {
	votes := map[string]map[NamedPort]int{}
	for _, in := range instances {
		for _, p := range in.Named {
			if votes[p.Name] == nil {
				votes[p.Name] = map[NamedPort]int{}
			}
			votes[p.Name][p]++
		}
	}
	var all []NamedPort
	for _, name := range slices.Sorted(maps.Keys(votes)) {
		var best NamedPort
		for p, n := range votes[name] {
			if most := votes[name][best]; n > most || n == most && comparePorts(p, best) < 0 {
				best = p
			}
		}
		all = append(all, best)
	}
	return all
}

func comparePorts(a, b NamedPort) int {
	if a.Number != b.Number {
		return int(a.Number) - int(b.Number)
	}
	return strings.Compare(a.Protocol, b.Protocol)
}

// portName names a port by its protocol, from which proxies know it.
func portName(protocol string, number uint32, several bool) string {
	switch {
	case protocol == "":
		return fmt.Sprintf("port-%d", number)
	case several:
		return fmt.Sprintf("%s-%d", protocol, number)
	}
	return protocol
}
