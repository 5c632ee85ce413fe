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
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/route"
	"meshlog.dev/services/mesh/xds/traffic"
)

// connections is the part for a sidecar's filter chains for connections to one
// service (LSN-6).
type connections struct {
	listener string
	service  index.ServiceID
	rule     index.RuleID // of the service; zero: none says something about connections
	defaults bool         // the MeshConfig says something about connections
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
	t := &connector{Options: route.NewOptions(r, c.caller, c.port, route.Mesh), key: c.virtualService, defaults: c.defaults}
	var all []*listenerv3.FilterChain
	base := c.match(s)
	rule, _ := r.DestinationRule(c.rule)
	final := forwardAs(piece.ClusterName(s.Hostname, "", c.port), policyOf(r, c.defaults, rule, c.port))
	routed := false
	if c.virtualService != (ident.Key{}) {
		within, _ := prefix(c.cidr)
		for _, chain := range ofRoutes(arrange(narrow(t.tcpRoutes(r.VirtualService(c.virtualService)), within))) {
			if chain.GetFilterChainMatch() == nil {
				final, routed = chain.GetFilters()[0], true
				continue
			}
			chain.FilterChainMatch.ServerNames = base.GetServerNames()
			all = append(all, chain)
		}
	}
	last := &listenerv3.FilterChain{FilterChainMatch: base, Filters: []*listenerv3.Filter{final}}
	if s.Resolution == index.DynamicDNS && !routed {
		p, _ := s.Port(c.port)
		last.Filters = []*listenerv3.Filter{resolveServerName(p), final}
	}
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
	sources  bool                 // routes can be for some sources
	defaults bool                 // the MeshConfig says something about connections
	longest  *durationpb.Duration // of a connection; nil: for ever
	resolves bool                 // the server name says where the connections of the route go (SE-8)
	problems []problem.Diagnostic
}

// filter forwards connections to destinations by weight.
func (t *connector) filter(at string, all []*networking.RouteDestination) *listenerv3.Filter {
	shares := route.Weighted(all)
	var policies []traffic.Policy
	cluster := func(d *networking.RouteDestination) string {
		name, policy := t.cluster(fmt.Sprintf("%s[%d].destination", at, slices.Index(all, d)), d.GetDestination())
		policies = append(policies, policy)
		return name
	}
	switch len(shares) {
	case 0:
		t.warn(at, "there is no destination, or all weights are 0", "give one destination a weight")
		return forward(piece.BlackHoleCluster)
	case 1:
		to := cluster(shares[0])
		m := &tcpv3.TcpProxy{StatPrefix: to, ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: to}, MaxDownstreamConnectionDuration: t.longest}
		shape(m, policies...)
		return networkFilter(tcpProxy, m)
	}
	weights := &tcpv3.TcpProxy_WeightedCluster{}
	for _, d := range shares {
		weights.Clusters = append(weights.Clusters, &tcpv3.TcpProxy_WeightedCluster_ClusterWeight{
			Name: cluster(d), Weight: uint32(d.GetWeight()),
		})
	}
	m := &tcpv3.TcpProxy{
		StatPrefix:                      weights.GetClusters()[0].GetName(),
		ClusterSpecifier:                &tcpv3.TcpProxy_WeightedClusters{WeightedClusters: weights},
		MaxDownstreamConnectionDuration: t.longest,
	}
	if !shape(m, policies...) {
		t.problems = append(t.problems, problem.Diagnostic{
			Severity: problem.Warning, Code: "route", Key: t.key, Field: at,
			Reason: "the DestinationRules of its destinations differ in connectionPool.tcp.idleTimeout or maxConnectionDuration, and proxies have one for all of a route",
			Advice: "give these DestinationRules the same", Effect: "every connection of the route has the shortest",
		})
	}
	return networkFilter(tcpProxy, m)
}

// cluster returns the cluster of a destination, and the policy that counts there.
func (t *connector) cluster(at string, d *networking.Destination) (string, traffic.Policy) {
	s, host := t.Service(d.GetHost()), d.GetHost()
	if s == nil {
		t.warn(at+".host", fmt.Sprintf("there is no service %q that the caller may see", host), "correct the destination, or add what it names")
	} else {
		host = s.Hostname
		if s.Resolution == index.DynamicDNS && !t.resolves {
			t.warn(at+".host", fmt.Sprintf("calls name the endpoints of %s, and these connections name none", host),
				"use a tls route with one destination, at a server with mode PASSTHROUGH")
		}
	}
	port := route.Port(s, d, t.Port)
	var mesh *meshconfig.MeshConfig
	if t.defaults {
		mesh = t.Mesh()
	}
	return piece.ClusterName(host, d.GetSubset(), port), traffic.Find(mesh, t.ConnectionRule(d.GetHost()), d.GetSubset(), port)
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

// forwardAs is forward with what a policy says about connections.
func forwardAs(cluster string, policy traffic.Policy) *listenerv3.Filter {
	m := &tcpv3.TcpProxy{StatPrefix: cluster, ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: cluster}}
	shape(m, policy)
	return networkFilter(tcpProxy, m)
}

// others is the part for the chain for unknown destinations (LSN-8).
type others struct {
	listener string
	outbound string // as in index.LDSClass
}

func (o others) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	return []piece.Piece{{Name: o.listener, Partial: true, Message: &listenerv3.Listener{
		DefaultFilterChain: &listenerv3.FilterChain{
			Name: "PassthroughFilterChain", Filters: []*listenerv3.Filter{forward(route.UnknownCluster(r.Outbound(o.outbound)))},
		},
	}}}, nil
}
