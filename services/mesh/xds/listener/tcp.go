package listener

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/route"
)

// connections is the part for a sidecar's filter chains for connections to one
// service (LSN-6).
type connections struct {
	listener string
	service  index.ServiceID
	port     uint32
	// cidr limits the destinations; empty: all that arrive here.
	cidr string
	// serverName: only for TLS clients that ask for the service by name.
	serverName bool
	// fallback: for connections that no other chain takes.
	fallback bool
	// virtualService decides for these callers, unless it is zero.
	virtualService ident.Key
	caller         route.Caller
}

func (c connections) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	s := r.Service(c.service)
	if s == nil {
		return nil, nil
	}
	t := &connector{Options: route.NewOptions(r, c.caller, c.port, route.Mesh), key: c.virtualService}
	var all []*listenerv3.FilterChain
	base := c.match(s)
	final := forward(piece.ClusterName(s.Hostname, "", c.port))
	if c.virtualService != (ident.Key{}) {
		narrower, rest := t.routes(r.VirtualService(c.virtualService))
		for _, n := range narrower {
			m := &listenerv3.FilterChainMatch{PrefixRanges: n.ranges, ServerNames: base.GetServerNames()}
			all = append(all, &listenerv3.FilterChain{FilterChainMatch: m, Filters: []*listenerv3.Filter{n.filter}})
		}
		if rest != nil {
			final = rest
		}
	}
	last := &listenerv3.FilterChain{FilterChainMatch: base, Filters: []*listenerv3.Filter{final}}
	if !c.fallback {
		return chains(c.listener, append(all, last)...), t.problems
	}
	l := &listenerv3.Listener{FilterChains: all, DefaultFilterChain: last}
	return []piece.Piece{{Name: c.listener, Message: l, Partial: true}}, t.problems
}

// match returns nil if all connections match.
func (c connections) match(s *index.Service) *listenerv3.FilterChainMatch {
	m := &listenerv3.FilterChainMatch{}
	if c.cidr != "" {
		m.PrefixRanges = ranges([]string{c.cidr})
	}
	if c.serverName {
		m.ServerNames = []string{strings.ToLower(s.Hostname)}
	}
	if len(m.PrefixRanges) == 0 && len(m.ServerNames) == 0 {
		return nil
	}
	return m
}

// ranges reads CIDRs and IPs and leaves out anything else.
func ranges(all []string) []*corev3.CidrRange {
	var out []*corev3.CidrRange
	for _, s := range all {
		p, ok := prefix(s)
		if !ok {
			continue
		}
		out = append(out, cidrRange(p))
	}
	return out
}

func cidrRange(p netip.Prefix) *corev3.CidrRange {
	return &corev3.CidrRange{AddressPrefix: p.Addr().String(), PrefixLen: wrapperspb.UInt32(uint32(p.Bits()))}
}

func prefix(s string) (netip.Prefix, bool) {
	if p, err := netip.ParsePrefix(s); err == nil {
		return p.Masked(), true
	}
	ip, err := netip.ParseAddr(s)
	if err != nil || ip.Zone() != "" {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(ip, ip.BitLen()), true
}

// connector translates the TCP routes of a VirtualService.
type connector struct {
	route.Options
	key      ident.Key
	longest  *durationpb.Duration // of a connection; nil: for ever
	problems []problem.Diagnostic
}

// narrowed is the route for some destinations.
type narrowed struct {
	ranges []*corev3.CidrRange
	filter *listenerv3.Filter
}

// routes returns the routes for some destinations and the one for all others;
// nil: no route decides about those (VST-5, VST-6).
func (t *connector) routes(vs *networking.VirtualService) (some []narrowed, others *listenerv3.Filter) {
	for i, tcp := range vs.GetTcp() {
		at := fmt.Sprintf("spec.tcp[%d].route", i)
		matches := tcp.GetMatch()
		if len(matches) == 0 {
			matches = []*networking.L4MatchAttributes{nil}
		}
		var subnets []string
		for _, m := range matches {
			if !t.Applies(m) {
				continue
			}
			if len(m.GetDestinationSubnets()) == 0 {
				return some, t.filter(at, tcp.GetRoute())
			}
			subnets = append(subnets, m.GetDestinationSubnets()...)
		}
		if rs := t.unclaimed(some, ranges(subnets)); len(rs) > 0 {
			some = append(some, narrowed{rs, t.filter(at, tcp.GetRoute())})
		}
	}
	return some, nil
}

// unclaimed leaves out ranges of earlier routes: no two chains may match the
// same.
func (t *connector) unclaimed(earlier []narrowed, all []*corev3.CidrRange) []*corev3.CidrRange {
	seen := map[string]bool{}
	for _, n := range earlier {
		for _, r := range n.ranges {
			seen[r.String()] = true
		}
	}
	return slices.DeleteFunc(all, func(r *corev3.CidrRange) bool {
		twice := seen[r.String()]
		seen[r.String()] = true
		return twice
	})
}

// filter forwards connections to destinations by weight.
func (t *connector) filter(at string, all []*networking.RouteDestination) *listenerv3.Filter {
	shares := route.Weighted(all)
	cluster := func(d *networking.RouteDestination) string {
		return t.cluster(fmt.Sprintf("%s[%d].destination", at, slices.Index(all, d)), d.GetDestination())
	}
	switch len(shares) {
	case 0:
		t.warn(at, "there is no destination, or all weights are 0", "give one destination a weight")
		return forward(piece.BlackHoleCluster)
	case 1:
		to := cluster(shares[0])
		return networkFilter(tcpProxy, &tcpv3.TcpProxy{
			StatPrefix: to, ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: to}, MaxDownstreamConnectionDuration: t.longest,
		})
	}
	weights := &tcpv3.TcpProxy_WeightedCluster{}
	for _, d := range shares {
		weights.Clusters = append(weights.Clusters, &tcpv3.TcpProxy_WeightedCluster_ClusterWeight{
			Name: cluster(d), Weight: uint32(d.GetWeight()),
		})
	}
	return networkFilter(tcpProxy, &tcpv3.TcpProxy{
		StatPrefix:                      weights.GetClusters()[0].GetName(),
		ClusterSpecifier:                &tcpv3.TcpProxy_WeightedClusters{WeightedClusters: weights},
		MaxDownstreamConnectionDuration: t.longest,
	})
}

func (t *connector) cluster(at string, d *networking.Destination) string {
	s, host := t.Service(d.GetHost()), d.GetHost()
	if s == nil {
		t.warn(at+".host", fmt.Sprintf("there is no service %q that the caller may see", host), "correct the destination, or add what it names")
	} else {
		host = s.Hostname
	}
	return piece.ClusterName(host, d.GetSubset(), route.Port(s, d, t.Port))
}

func (t *connector) warn(at, reason, advice string) {
	t.problems = append(t.problems, problem.Diagnostic{
		Severity: problem.Warning, Code: "route", Key: t.key, Field: at, Reason: reason, Advice: advice,
		Effect: "connections that go there are closed",
	})
}

const tcpProxy = "envoy.filters.network.tcp_proxy"

// forward returns the network filter that forwards connections to one cluster.
func forward(cluster string) *listenerv3.Filter {
	return networkFilter(tcpProxy, &tcpv3.TcpProxy{
		StatPrefix: cluster, ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: cluster},
	})
}

// others is the part for the chain for unknown destinations (LSN-8).
type others struct{ listener string }

func (o others) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	return []piece.Piece{{Name: o.listener, Partial: true, Message: &listenerv3.Listener{
		DefaultFilterChain: &listenerv3.FilterChain{
			Name: "PassthroughFilterChain", Filters: []*listenerv3.Filter{forward(otherCluster(route.AllowsAny(r.Mesh())))},
		},
	}}}, nil
}
