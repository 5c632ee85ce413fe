package listener

import (
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	networking "istio.io/api/networking/v1alpha3"

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
	// services has a line for each: namespace/host, and then the namespace, the host and the
	// name of its DestinationRules if they say something about connections.
	services string
	defaults bool // the MeshConfig says something about connections
}

func (o *outbound) lines(services []*index.Service) string {
	slices.SortFunc(services, func(a, b *index.Service) int {
		if route.Senior(a, b, o.class.Cluster) {
			return -1
		}
		return 1
	})
	all := make([]string, len(services))
	for i, s := range services {
		all[i] = s.Namespace + "/" + s.Hostname
		if rule := o.r.ConnectionRule(o.class.Scope, s.Namespace, s.Hostname); rule != (index.RuleID{}) {
			all[i] += " " + rule.Namespace + " " + rule.Host + " " + rule.Name
		}
	}
	return strings.Join(all, "\n")
}

func (p toEndpoints) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	taken := map[netip.Addr]bool{}
	var all []*listenerv3.FilterChain
	for line := range strings.SplitSeq(p.services, "\n") {
		words := strings.Fields(line)
		namespace, host, _ := strings.Cut(words[0], "/")
		var rule *networking.DestinationRule
		if len(words) > 1 {
			rule, _ = r.DestinationRule(index.RuleID{Namespace: words[1], Host: words[2], Name: words[3]})
		}
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
				Filters:          []*listenerv3.Filter{forwardAs(piece.ClusterName(host, "", p.port), policyOf(r, p.defaults, rule, p.port))},
			})
		}
	}
	return chains(p.listener, all...), nil
}
