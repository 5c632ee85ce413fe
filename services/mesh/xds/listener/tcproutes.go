package listener

import (
	"fmt"
	"net/netip"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	networking "istio.io/api/networking/v1alpha3"
)

// tcpRoute is a route for the connections of some sources to some destinations.
type tcpRoute struct {
	at       string       // the field of its match
	to, from netip.Prefix // zero: all
	filter   *listenerv3.Filter
}

// everything reports whether a route is for all connections.
func (r tcpRoute) everything() bool { return r.to == (netip.Prefix{}) && r.from == (netip.Prefix{}) }

// tcpRoutes returns the TCP routes of a VirtualService in order, up to the first one for all
// connections (VST-2 to VST-5). Only at routers a route can be for some sources.
func (t *connector) tcpRoutes(vs *networking.VirtualService) []tcpRoute {
	var all []tcpRoute
	for i, tcp := range vs.GetTcp() {
		matches := tcp.GetMatch()
		if len(matches) == 0 {
			matches = []*networking.L4MatchAttributes{nil}
		}
		var filter *listenerv3.Filter
		for j, m := range matches {
			if !t.Applies(m) {
				continue
			}
			if filter == nil {
				filter = t.filter(fmt.Sprintf("spec.tcp[%d].route", i), tcp.GetRoute())
			}
			r := tcpRoute{at: fmt.Sprintf("spec.tcp[%d].match[%d]", i, j), filter: filter}
			if t.sources && m.GetSourceSubnet() != "" {
				from, ok := prefix(m.GetSourceSubnet())
				if !ok {
					continue
				}
				r.from = from
			}
			for _, subnet := range m.GetDestinationSubnets() {
				if to, ok := prefix(subnet); ok {
					all = append(all, tcpRoute{r.at, to, r.from, filter})
				}
			}
			if len(m.GetDestinationSubnets()) == 0 {
				all = append(all, r)
			}
			if r.everything() && len(m.GetDestinationSubnets()) == 0 {
				return all
			}
		}
	}
	return all
}

// arrange returns routes for the same connections of which no two are alike, so that Envoy
// finds the first route that matches (VST-6): Envoy takes the most specific destination, then
// the most specific source of the chains for that destination, and looks at no other chains.
func arrange(routes []tcpRoute) []tcpRoute {
	var all []tcpRoute
	done := map[netip.Prefix]bool{}
	for _, at := range routes {
		if done[at.to] {
			continue
		}
		done[at.to] = true
		var taken []netip.Prefix
		for _, r := range routes {
			if !covers(r.to, at.to) || slices.ContainsFunc(taken, func(p netip.Prefix) bool { return covers(p, r.from) }) {
				continue
			}
			taken = append(taken, r.from)
			all = append(all, tcpRoute{r.at, at.to, r.from, r.filter})
		}
	}
	return all
}

// covers reports whether every address in p is in of; the zero Prefix has all addresses.
func covers(of, p netip.Prefix) bool {
	return of == (netip.Prefix{}) || p.IsValid() && of.Bits() <= p.Bits() && of.Contains(p.Addr())
}

// narrow limits routes to the connections to a range; zero: all.
func narrow(routes []tcpRoute, to netip.Prefix) []tcpRoute {
	var all []tcpRoute
	for _, r := range routes {
		switch {
		case covers(r.to, to):
			r.to = netip.Prefix{}
		case !covers(to, r.to):
			continue
		}
		all = append(all, r)
	}
	return all
}

// ofRoutes returns the conditions of arranged routes with their filters. Routes that differ
// in the destination only are one.
func ofRoutes(routes []tcpRoute) []*listenerv3.FilterChain {
	type group struct {
		from   netip.Prefix
		filter *listenerv3.Filter
		some   bool // destinations
	}
	var all []*listenerv3.FilterChain
	groups := map[group]*listenerv3.FilterChain{}
	for _, r := range routes {
		g := group{r.from, r.filter, r.to.IsValid()}
		if groups[g] == nil {
			groups[g] = &listenerv3.FilterChain{Filters: []*listenerv3.Filter{r.filter}}
			if !r.everything() {
				groups[g].FilterChainMatch = &listenerv3.FilterChainMatch{}
			}
			if r.from.IsValid() {
				groups[g].FilterChainMatch.SourcePrefixRanges = []*corev3.CidrRange{cidrRange(r.from)}
			}
			all = append(all, groups[g])
		}
		if r.to.IsValid() {
			m := groups[g].GetFilterChainMatch()
			m.PrefixRanges = append(m.PrefixRanges, cidrRange(r.to))
		}
	}
	return all
}
