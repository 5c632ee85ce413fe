package cluster

import (
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/proxy"
)

// See returns endpoints as a proxy at a place sees them (NET-2, NET-5, NET-6):
// endpoints of other networks are replaced by the gateways of those networks,
// with their weight. A proxy tells endpoints apart by address, so of several
// with one address only the first is kept. It reuses the slice that it is
// given.
func See(endpoints []*index.Endpoint, view index.ServiceView, gateways *index.NetworkGateways) []*index.Endpoint {
	s := split{view: view, gateways: gateways, scale: 1}
	direct := endpoints[:0]
	for _, e := range endpoints {
		switch {
		case view.Cluster != "" && e.Kubernetes && e.ClusterID != view.Cluster:
		case names(view.Hidden, e.Network):
		case names(view.Through, e.Network):
			s.add(e)
		case e.Address == "": // only its network's gateways can reach it
		case len(direct) > 0 && direct[len(direct)-1].Address == e.Address && direct[len(direct)-1].Port == e.Port:
		default:
			direct = append(direct, e)
		}
	}
	if len(s.behind) == 0 {
		return direct
	}
	return s.collapse(direct)
}

// names reports whether a list, one name per line, contains a name.
func names(lines, name string) bool {
	if lines == "" || name == "" {
		return false
	}
	for line := range strings.SplitSeq(lines, "\n") {
		if line == name {
			return true
		}
	}
	return false
}

// split collects the endpoints that are behind gateways.
type split struct {
	view     index.ServiceView
	gateways *index.NetworkGateways
	behind   []behind
	scale    uint64 // multiplies all weights, so that they can be divided among gateways
}

// behind is an endpoint with the gateways that lead to it.
type behind struct {
	*index.Endpoint
	gateways []index.NetworkGateway
}

// entrance is a gateway with the weight behind it by locality.
type entrance struct {
	index.NetworkGateway
	weights map[proxy.Locality]uint64
}

// add leaves out endpoints that cannot be reached. A gateway finds the service
// in Istio's mutual TLS, so the endpoint must speak it. An unhealthy endpoint
// is left out because the gateway decides which endpoint it calls.
func (s *split) add(e *index.Endpoint) {
	if !e.MutualTLS || e.Health != index.Healthy {
		return
	}
	gateways := s.gateways.Of(e.Network, e.ClusterID)
	if s.view.Family != 0 {
		gateways = slices.DeleteFunc(slices.Clone(gateways), func(g index.NetworkGateway) bool {
			return index.FamilyOf(g.Address) != s.view.Family
		})
	}
	if len(gateways) == 0 {
		return
	}
	s.behind = append(s.behind, behind{e, gateways})
	s.scale = leastCommonMultiple(s.scale, uint64(len(gateways)))
}

// collapse returns the direct endpoints and the gateways. Their weights have
// the same ratio as those of the endpoints that they stand for.
func (s *split) collapse(direct []*index.Endpoint) []*index.Endpoint {
	all := make([]*index.Endpoint, 0, len(direct)+len(s.behind))
	for _, e := range direct {
		if s.scale > 1 {
			scaled := *e
			scaled.Weight = clip(uint64(e.Weight) * s.scale)
			e = &scaled
		}
		all = append(all, e)
	}
	for _, g := range s.entrances() {
		all = append(all, g.endpoint())
	}
	return all
}

// entrances returns the gateways, each address once: Envoy drops every further
// one.
func (s *split) entrances() []entrance {
	found := map[netip.AddrPort]entrance{}
	for _, b := range s.behind {
		for _, g := range b.gateways {
			at := netip.AddrPortFrom(g.Address, uint16(g.Port))
			if _, have := found[at]; !have {
				found[at] = entrance{g, map[proxy.Locality]uint64{}}
			}
			found[at].weights[b.Locality] += uint64(b.Weight) * s.scale / uint64(len(b.gateways))
		}
	}
	all := slices.Collect(maps.Values(found))
	slices.SortFunc(all, func(a, b entrance) int { return a.Compare(b.NetworkGateway) })
	return all
}

// endpoint returns the gateway as an endpoint, at the locality of most of the
// weight behind it.
func (g *entrance) endpoint() *index.Endpoint {
	e := &index.Endpoint{Address: g.Address.String(), Port: g.Port, Network: g.Network, ClusterID: g.Cluster, MutualTLS: true}
	var sum, most uint64
	for l, weight := range g.weights {
		sum += weight
		if weight > most || weight == most && compareLocalities(l, e.Locality) < 0 {
			e.Locality, most = l, weight
		}
	}
	e.Weight = clip(sum)
	return e
}

func clip(weight uint64) uint32 { return uint32(min(weight, math.MaxUint32)) }

// leastCommonMultiple is limited, so that weights of 32 bits can be multiplied
// by it. With more gateways than the limit, weights are rounded down.
func leastCommonMultiple(a, b uint64) uint64 {
	x, y := a, b
	for y > 0 {
		x, y = y, x%y
	}
	return min(a/x*b, math.MaxUint16)
}
