package simulate

import (
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
)

const httpInspector = "envoy.filters.listener.http_inspector"

// matchChain finds the filter chain of a connection: by destination port, then
// by address, the most specific range first, then by application protocol.
func matchChain(l *listenerv3.Listener, c Call) *listenerv3.FilterChain {
	if l.GetApiListener() != nil {
		return &listenerv3.FilterChain{Filters: []*listenerv3.Filter{{
			ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: l.GetApiListener().GetApiListener()},
		}}}
	}
	protocol := ""
	if !c.TCP && slices.ContainsFunc(l.GetListenerFilters(), func(f *listenerv3.ListenerFilter) bool { return f.GetName() == httpInspector }) {
		protocol = "http/1.1"
	}
	chains := l.GetFilterChains()
	chains = best(chains, func(m *listenerv3.FilterChainMatch) int {
		switch {
		case m.GetDestinationPort() == nil:
			return 0
		case m.GetDestinationPort().GetValue() == c.Port:
			return 1
		}
		return -1
	})
	chains = best(chains, func(m *listenerv3.FilterChainMatch) int { return matchRanges(m.GetPrefixRanges(), c.Address) })
	chains = best(chains, func(m *listenerv3.FilterChainMatch) int {
		switch {
		case len(m.GetServerNames()) > 0 || m.GetTransportProtocol() == "tls":
			return -1 // calls are in the clear
		case m.GetTransportProtocol() == "raw_buffer":
			return 1
		}
		return 0
	})
	chains = best(chains, func(m *listenerv3.FilterChainMatch) int {
		switch {
		case len(m.GetApplicationProtocols()) == 0:
			return 0
		case slices.Contains(m.GetApplicationProtocols(), protocol):
			return 1
		}
		return -1
	})
	if len(chains) > 0 {
		return chains[0]
	}
	return l.GetDefaultFilterChain()
}

// best keeps the chains of the highest rank. A negative rank is no match.
func best(chains []*listenerv3.FilterChain, rank func(*listenerv3.FilterChainMatch) int) []*listenerv3.FilterChain {
	var kept []*listenerv3.FilterChain
	most := 0
	for _, c := range chains {
		switch r := rank(c.GetFilterChainMatch()); {
		case r < 0 || r < most:
		case r > most:
			kept, most = []*listenerv3.FilterChain{c}, r
		default:
			kept = append(kept, c)
		}
	}
	return kept
}

// matchRanges returns 0 if there are no ranges, and otherwise one more than the
// length of the longest range that contains a; -1 if none does.
func matchRanges(ranges []*corev3.CidrRange, a netip.Addr) int {
	if len(ranges) == 0 {
		return 0
	}
	longest := -1
	for _, r := range ranges {
		ip, err := netip.ParseAddr(r.GetAddressPrefix())
		if err != nil || !a.IsValid() {
			continue
		}
		if p := netip.PrefixFrom(ip, int(r.GetPrefixLen().GetValue())); p.Contains(a) {
			longest = max(longest, p.Bits()+1)
		}
	}
	return longest
}

// filters follows the chain's filters up to the one that handles the call.
func (p *Proxy) filters(chain *listenerv3.FilterChain, c Call, o *Outcome) {
	for _, f := range chain.GetFilters() {
		m, err := f.GetTypedConfig().UnmarshalNew()
		if err != nil {
			o.note("filter %s: %v", f.GetName(), err)
			continue
		}
		switch m := m.(type) {
		case *hcmv3.HttpConnectionManager:
			if c.TCP {
				o.note("not HTTP: Envoy answers 400 and closes the connection")
				o.Status = 400
				return
			}
			p.http(m, c, o)
			return
		case *tcpv3.TcpProxy:
			p.tcp(m, o)
			return
		default:
			o.note("cannot simulate filter %s", f.GetName())
		}
	}
	o.note("no filter takes the connection: Envoy closes it")
}

func (p *Proxy) tcp(m *tcpv3.TcpProxy, o *Outcome) {
	if name := m.GetCluster(); name != "" {
		o.To = append(o.To, p.destination(name, 1))
		return
	}
	for _, w := range m.GetWeightedClusters().GetClusters() {
		o.To = append(o.To, p.destination(w.GetName(), w.GetWeight()))
	}
}

func (p *Proxy) http(m *hcmv3.HttpConnectionManager, c Call, o *Outcome) {
	routes := m.GetRouteConfig()
	if name := m.GetRds().GetRouteConfigName(); name != "" {
		if routes = p.routes[name]; routes == nil {
			o.note("RouteConfiguration %q is missing", name)
			o.Status = 404
			return
		}
	}
	o.RouteConfiguration = routes.GetName()
	host := strings.ToLower(c.Host)
	if routes.GetIgnorePortInHostMatching() {
		host = withoutPort(host)
	}
	vh := virtualHost(routes, host)
	if vh == nil {
		o.note("no virtual host for %q", c.Host)
		o.Status = 404
		return
	}
	o.VirtualHost = vh.GetName()
	p.route(vh, c, o)
}

// withoutPort returns a host without its port.
func withoutPort(host string) string {
	if i := strings.LastIndexByte(host, ':'); i > 0 && (host[i-1] == ']' || strings.Count(host, ":") == 1) {
		return host[:i]
	}
	return host
}
