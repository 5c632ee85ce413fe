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

// See is endpoints as they are seen from somewhere (NET-2, NET-5, NET-6): those
// of other networks collapse to the gateways by which these are entered, with
// their weight. A proxy tells endpoints apart by their addresses, so of several
// with one the first is left. What is returned may be the slice that was given.
func See(endpoints []*index.Endpoint, view index.ServiceView, gateways *index.NetworkGateways) []*index.Endpoint {
	s := split{view: view, gateways: gateways, scale: 1}
	direct := endpoints[:0]
	for _, e := range endpoints {
		switch {
		case view.Cluster != "" && e.Kubernetes && e.ClusterID != view.Cluster:
		case names(view.Hidden, e.Network):
		case names(view.Through, e.Network):
			s.add(e)
		case e.Address == "": // only gateways know where it is
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

// names says whether a list of names, a line each, has one.
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

// split gathers the endpoints that are behind gateways.
type split struct {
	view     index.ServiceView
	gateways *index.NetworkGateways
	behind   []behind
	scale    uint64 // by which all weights are multiplied to be divided among gateways
}

// behind is an endpoint with the gateways that lead to it.
type behind struct {
	*index.Endpoint
	gateways []index.NetworkGateway
}

// entrance is a gateway, and the weight of what is behind it by locality.
type entrance struct {
	index.NetworkGateway
	weights map[proxy.Locality]uint64
}

// add leaves out who cannot be reached: gateways tell services apart by what
// Istio's mutual TLS says, and whether an endpoint that is not healthy is
// called is up to them.
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

// collapse is the direct endpoints and the gateways, whose weights are to each
// other as those of the endpoints for which they stand.
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

// entrances are the gateways, each address once: Envoy drops every other one.
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

// endpoint is a gateway where most of what is behind it is.
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

// leastCommonMultiple stays so small that weights of 32 bits can be multiplied
// by it; divided among more gateways than that, they are rounded down.
func leastCommonMultiple(a, b uint64) uint64 {
	x, y := a, b
	for y > 0 {
		x, y = y, x%y
	}
	return min(a/x*b, math.MaxUint16)
}
