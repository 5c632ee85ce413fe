package listener

import (
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/route"
)

// toEndpoints is the part for a sidecar's filter chains for connections to the
// endpoints of services without an address, one chain for each service
// (LSN-10). It is one part because an endpoint may belong to several services,
// and only one of them can get its connections.
type toEndpoints struct {
	listener string
	port     uint32
	services string // namespace/host, one per line
}

func lines(services []*index.Service, cluster string) string {
	slices.SortFunc(services, func(a, b *index.Service) int {
		if route.Senior(a, b, cluster) {
			return -1
		}
		return 1
	})
	all := make([]string, len(services))
	for i, s := range services {
		all[i] = s.Namespace + "/" + s.Hostname
	}
	return strings.Join(all, "\n")
}

func (p toEndpoints) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	taken := map[netip.Addr]bool{}
	var all []*listenerv3.FilterChain
	for line := range strings.SplitSeq(p.services, "\n") {
		namespace, host, _ := strings.Cut(line, "/")
		var to []*corev3.CidrRange
		for _, e := range r.Endpoints(index.ServiceID{Namespace: namespace, Hostname: host})[p.port] {
			ip, err := netip.ParseAddr(e.Address)
			if err != nil || taken[ip] {
				continue
			}
			taken[ip] = true
			to = append(to, cidrRange(netip.PrefixFrom(ip, ip.BitLen())))
		}
		if len(to) > 0 {
			all = append(all, &listenerv3.FilterChain{
				FilterChainMatch: &listenerv3.FilterChainMatch{PrefixRanges: to},
				Filters:          []*listenerv3.Filter{forward(piece.ClusterName(host, "", p.port))},
			})
		}
	}
	return chains(p.listener, all...), nil
}
