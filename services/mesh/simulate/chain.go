package simulate

import (
	"errors"
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	sniv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/sni_dynamic_forward_proxy/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
)

// The listener filters that say more about a connection.
const (
	httpInspector = "envoy.filters.listener.http_inspector"
	tlsInspector  = "envoy.filters.listener.tls_inspector"
	originalDst   = "envoy.filters.listener.original_dst"
)

const (
	rawBuffer = "raw_buffer"
	tls       = "tls"
)

// matchChain finds the filter chain of a connection: by destination port, then
// by address, the most specific range first, then by server name, by transport, by
// application protocol, and by the caller's address.
//
// It returns an error if the chain depends on the caller's address, and the call has none.
func matchChain(l *listenerv3.Listener, c Call) (*listenerv3.FilterChain, error) {
	if l.GetApiListener() != nil {
		return &listenerv3.FilterChain{Filters: []*listenerv3.Filter{{
			ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: l.GetApiListener().GetApiListener()},
		}}}, nil
	}
	transport, name := rawBuffer, ""
	var protocols []string
	switch {
	case c.TLS && inspects(l, tlsInspector, c):
		transport, name, protocols = tls, strings.ToLower(c.ServerName), c.ALPN
	case !c.TLS && !c.TCP && inspects(l, httpInspector, c):
		protocols = []string{"http/1.1"}
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
	chains = best(chains, func(m *listenerv3.FilterChainMatch) int { return matchNames(m.GetServerNames(), name) })
	chains = best(chains, func(m *listenerv3.FilterChainMatch) int {
		switch m.GetTransportProtocol() {
		case "":
			return 0
		case transport:
			return 1
		}
		return -1
	})
	chains = best(chains, func(m *listenerv3.FilterChainMatch) int {
		if len(m.GetApplicationProtocols()) == 0 {
			return 0
		}
		for i, p := range protocols { // the client's order counts
			if slices.Contains(m.GetApplicationProtocols(), p) {
				return len(protocols) - i
			}
		}
		return -1
	})
	if !c.From.IsValid() && slices.ContainsFunc(chains, func(f *listenerv3.FilterChain) bool { return len(f.GetFilterChainMatch().GetSourcePrefixRanges()) > 0 }) {
		return nil, errors.New("the filter chain depends on the caller's address")
	}
	chains = best(chains, func(m *listenerv3.FilterChainMatch) int { return matchRanges(m.GetSourcePrefixRanges(), c.From) })
	if len(chains) > 0 {
		return chains[0], nil
	}
	return l.GetDefaultFilterChain(), nil
}

// inspects reports whether a listener has a listener filter that looks at the call.
func inspects(l *listenerv3.Listener, filter string, c Call) bool {
	return slices.ContainsFunc(l.GetListenerFilters(), func(f *listenerv3.ListenerFilter) bool {
		return f.GetName() == filter && (f.GetFilterDisabled() == nil || !disabled(f.GetFilterDisabled(), c))
	})
}

// disabled evaluates what mesh/xds generates: ranges of ports.
func disabled(m *listenerv3.ListenerFilterChainMatchPredicate, c Call) bool {
	if r := m.GetDestinationPortRange(); r != nil {
		return int64(r.GetStart()) <= int64(c.Port) && int64(c.Port) < int64(r.GetEnd())
	}
	return slices.ContainsFunc(m.GetOrMatch().GetRules(), func(m *listenerv3.ListenerFilterChainMatchPredicate) bool { return disabled(m, c) })
}

// matchNames returns 0 if there are no server names, and otherwise a rank that is higher
// for a longer one; -1 if none matches.
func matchNames(names []string, name string) int {
	if len(names) == 0 {
		return 0
	}
	most := -1
	for _, n := range names {
		switch suffix, wild := strings.CutPrefix(n, "*"); {
		case n == name:
			most = max(most, 2*len(n)+1)
		case wild && name != "" && strings.HasSuffix(name, suffix):
			most = max(most, 2*len(n))
		}
	}
	return most
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
func (p *Proxy) filters(chain *listenerv3.FilterChain, c Call, decrypted bool, o *Outcome) {
	policies := ofConnection(c, decrypted, o)
	for _, f := range chain.GetFilters() {
		m, err := f.GetTypedConfig().UnmarshalNew()
		if err != nil {
			o.note("filter %s: %v", f.GetName(), err)
			continue
		}
		switch m := m.(type) {
		case *hcmv3.HttpConnectionManager:
			if c.TCP || c.TLS && !decrypted {
				o.note("not HTTP: Envoy answers 400 and closes the connection")
				o.Status = 400
				return
			}
			p.http(m, c, policies, o)
			o.logged(m.GetAccessLog())
			o.traced(m.GetTracing())
			return
		case *tcpv3.TcpProxy:
			o.send(c, decrypted)
			p.tcp(m, decrypted, o)
			o.logged(m.GetAccessLog())
			return
		case *sniv3.FilterConfig: // resolves where the connection goes
		default:
			if !policies.run(f.GetName(), m) {
				o.note("cannot simulate filter %s", f.GetName())
			}
			if policies.ended() {
				return
			}
		}
	}
	o.close("no filter takes the connection")
}

func (p *Proxy) tcp(m *tcpv3.TcpProxy, decrypted bool, o *Outcome) {
	if m.GetIdleTimeout() != nil {
		if d := m.GetIdleTimeout().AsDuration(); d > 0 {
			o.note("idle timeout %s", d)
		} else {
			o.note("no idle timeout")
		}
	}
	if m.GetMaxDownstreamConnectionDuration() != nil && !decrypted { // those that a server decrypts have a limit anyway (KEY-12)
		o.note("lasts at most %s", m.GetMaxDownstreamConnectionDuration().AsDuration())
	}
	if len(m.GetHashPolicy()) > 0 {
		o.note("the caller's address chooses the endpoint")
	}
	if name := m.GetCluster(); name != "" {
		o.To = append(o.To, p.destination(name, 1))
		return
	}
	for _, w := range m.GetWeightedClusters().GetClusters() {
		o.To = append(o.To, p.destination(w.GetName(), w.GetWeight()))
	}
}

// withoutPort returns a host without its port.
func withoutPort(host string) string {
	if i := strings.LastIndexByte(host, ':'); i > 0 && (host[i-1] == ']' || strings.Count(host, ":") == 1) {
		return host[:i]
	}
	return host
}
