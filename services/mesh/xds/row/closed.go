package row

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/services/mesh/xds/piece"
)

// Close returns what is served in place of a generated message that clients
// refuse, so that its requests and connections reach no other virtual host, filter
// chain or listener: the message with a refusal in place of each of its pieces
// that is refused on its own, and the names of these pieces. If others are to
// blame, it returns a resource that refuses everything, and no names; of a message
// that is a part of a resource, and of what cannot be closed, such as endpoints, it
// returns nil. What it returns is not refused itself. It does not change the message.
func Close(m proto.Message, partial bool, refused func(proto.Message) bool) (closed proto.Message, pieces []string) {
	if closed, pieces = closedPieces(m, refused); len(pieces) > 0 && !refused(closed) {
		return closed, pieces
	}
	if !partial {
		if closed = closedWhole(m); closed != nil && !refused(closed) {
			return closed, nil
		}
	}
	return nil, nil
}

// closedPieces returns a copy of m with refusals in place of the pieces that are
// refused, and their names.
func closedPieces(m proto.Message, refused func(proto.Message) bool) (closed proto.Message, names []string) {
	bad := func(one proto.Message) bool {
		is := refused(one)
		if is {
			names = append(names, nameOf(one))
		}
		return is
	}
	switch m := proto.Clone(m).(type) {
	case *routev3.RouteConfiguration:
		all := m.GetVirtualHosts()
		for i, h := range all {
			m.VirtualHosts = all[i : i+1]
			if bad(m) {
				all[i] = closedHost(h.GetName(), h.GetDomains())
			}
		}
		m.VirtualHosts = all
		return m, names
	case *listenerv3.Listener:
		all, last := m.GetFilterChains(), m.GetDefaultFilterChain()
		m.DefaultFilterChain = nil
		for i, c := range all {
			m.FilterChains = all[i : i+1]
			if bad(m) {
				all[i] = closedChain(c.GetName(), c.GetFilterChainMatch())
			}
		}
		m.FilterChains, m.DefaultFilterChain = nil, last
		if last != nil && bad(m) {
			m.DefaultFilterChain = closedChain(last.GetName(), nil)
		}
		m.FilterChains = all
		return m, names
	}
	return nil, nil
}

// closedWhole returns a resource that refuses all requests or connections of m, or
// nil if m has none. A Cluster without endpoints keeps its name: Envoy refuses a
// RouteConfiguration with validate_clusters that names an absent one. A filter of policies
// refuses all requests: without it, they would pass.
func closedWhole(m proto.Message) proto.Message {
	switch m := m.(type) {
	case *clusterv3.Cluster:
		return &clusterv3.Cluster{Name: m.GetName(), ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}}
	case *listenerv3.Listener:
		if l := closedListener(m); l != nil {
			return l
		}
	case *corev3.TypedExtensionConfig:
		return &corev3.TypedExtensionConfig{Name: m.GetName(), TypedConfig: piece.Any(piece.DenyAll("meshlog:refused"))}
	case *routev3.RouteConfiguration:
		return &routev3.RouteConfiguration{Name: m.GetName(), VirtualHosts: []*routev3.VirtualHost{closedHost("held back", []string{"*"})}}
	}
	return nil
}

// closedHost answers every request with 503.
func closedHost(name string, domains []string) *routev3.VirtualHost {
	return &routev3.VirtualHost{Name: name, Domains: domains, Routes: []*routev3.Route{{
		Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
		Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 503}},
	}}}
}

// closedChain closes every connection that matches, before a handshake: it
// forwards to a cluster that has no endpoints or does not exist.
func closedChain(name string, match *listenerv3.FilterChainMatch) *listenerv3.FilterChain {
	return &listenerv3.FilterChain{Name: name, FilterChainMatch: match, Filters: []*listenerv3.Filter{{
		Name: "envoy.filters.network.tcp_proxy",
		ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: piece.Any(&tcpv3.TcpProxy{
			StatPrefix: "held_back", ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: piece.BlackHoleCluster},
		})},
	}}}
}

// closedListener closes every connection to the addresses of l, so that none
// reaches a listener that takes what no other one takes. It returns nil for a
// listener without connections.
func closedListener(l *listenerv3.Listener) *listenerv3.Listener {
	s := l.GetAddress().GetSocketAddress()
	if l.GetApiListener() != nil || s == nil || s.GetProtocol() != corev3.SocketAddress_TCP {
		return nil
	}
	closed := &listenerv3.Listener{
		Name: l.GetName(), Address: l.GetAddress(), AdditionalAddresses: l.GetAdditionalAddresses(), BindToPort: l.GetBindToPort(),
		TrafficDirection: l.GetTrafficDirection(), DefaultFilterChain: closedChain("", nil),
		EnableReusePort: l.GetEnableReusePort(), // Envoy refuses an update that changes it
	}
	if reuse := l.GetEnableReusePort(); reuse != nil && !reuse.GetValue() { // or, without it, one that changes these
		closed.SocketOptions, closed.Transparent, closed.Freebind = l.GetSocketOptions(), l.GetTransparent(), l.GetFreebind()
		closed.TcpFastOpenQueueLength = l.GetTcpFastOpenQueueLength()
	}
	return closed
}
