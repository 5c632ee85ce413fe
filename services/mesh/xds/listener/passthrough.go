package listener

import (
	"fmt"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/gateway"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/route"
)

// routerNames is the part for a router's listener that forwards TLS connections by
// the server name that clients ask for, without decrypting them (GW-10).
type routerNames struct {
	bind  string
	port  uint32
	bound route.Bound
	hosts string // for each VirtualService of bound a line of the hosts that it may route
	// closed are the hosts of servers that cannot be served, one per line.
	closed string
}

func namesPart(r *index.Reader, class index.LDSClass, p *gateway.Port) piece.Part {
	var bindings []route.Binding
	var hosts, closed []string
	for _, s := range p.Servers {
		if s.Closed {
			for _, h := range s.Hosts {
				closed = append(closed, h.Name)
			}
			continue
		}
		for _, vs := range r.VirtualServices(class.Scope, s.Gateway) {
			if both := s.Intersect(vs.Key.Namespace, vs.Hosts); vs.TLS && len(both) > 0 {
				bindings = append(bindings, route.Binding{Gateway: s.Gateway, VirtualService: vs})
				hosts = append(hosts, strings.Join(both, " "))
			}
		}
	}
	return routerNames{
		bind: p.Bind, port: p.Number, bound: route.Bind(r, class.Sources, class.Scope, bindings),
		hosts: strings.Join(hosts, "\n"), closed: strings.Join(closed, "\n"),
	}
}

// Make returns no listener if no route matches (VST-9).
func (n routerNames) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	var all []*listenerv3.FilterChain
	var problems []problem.Diagnostic
	taken := map[string]bool{}
	hosts := strings.Split(n.hosts, "\n")
	for name, key := range n.bound.All() {
		t := &connector{Options: route.NewOptions(r, n.bound.Caller, n.port, name), key: key}
		all = append(all, t.byName(r.VirtualService(key), strings.Fields(hosts[0]), taken)...)
		problems = append(problems, t.problems...)
		hosts = hosts[1:]
	}
	if len(all) == 0 {
		return nil, problems
	}
	pieces := edgeListener(r.Mesh(), n.bind, n.port, append(all, closedTo(strings.Split(n.closed, "\n"), all)...)...)
	l := pieces[0].Message.(*listenerv3.Listener)
	l.ListenerFiltersTimeout = nil // Envoy's default: a client that sends no server name is closed after 15 s
	l.ListenerFilters = append(l.ListenerFilters, inspector("envoy.filters.listener.tls_inspector", &tlsinspectorv3.TlsInspector{}))
	return pieces, problems
}

// closedTo returns chains that close the connections to hosts. Without them these
// would go to the chain of a wildcard. Envoy chooses by addresses before it looks at
// names, so each set of addresses needs chains of its own.
func closedTo(hosts []string, beside []*listenerv3.FilterChain) []*listenerv3.FilterChain {
	var all []*listenerv3.FilterChain
	var seen [][]*corev3.CidrRange
	same := func(a, b *corev3.CidrRange) bool { return proto.Equal(a, b) }
	for _, c := range beside {
		ranges := c.GetFilterChainMatch().GetPrefixRanges()
		if slices.ContainsFunc(seen, func(s []*corev3.CidrRange) bool { return slices.EqualFunc(s, ranges, same) }) {
			continue
		}
		seen = append(seen, ranges)
		for _, host := range hosts {
			if host == "" || host == "*" || !matchable(host) {
				continue
			}
			m := ofName(host, nil)
			m.PrefixRanges = ranges
			all = append(all, &listenerv3.FilterChain{FilterChainMatch: m, Filters: []*listenerv3.Filter{forward(piece.BlackHoleCluster)}})
		}
	}
	return all
}

// byName returns the chains of the TLS routes of a VirtualService (VST-1), for the
// server names within hosts. Of equal conditions the first counts, as taken notes.
func (t *connector) byName(vs *networking.VirtualService, hosts []string, taken map[string]bool) []*listenerv3.FilterChain {
	var all []*listenerv3.FilterChain
	for i, tls := range vs.GetTls() {
		for j, m := range tls.GetMatch() {
			if !t.Applies(m) {
				continue
			}
			subnets := slices.Sorted(slices.Values(m.GetDestinationSubnets()))
			for _, name := range within(m.GetSniHosts(), hosts) {
				if at := name + " " + strings.Join(subnets, " "); taken[at] {
					continue
				} else if !matchable(name) && name != "*" {
					t.warn(fmt.Sprintf("spec.tls[%d].match[%d].sniHosts", i, j),
						fmt.Sprintf("Envoy cannot match the server name %s: what follows the * must begin with a dot", name), "write a host like *.example.com")
					continue
				} else {
					taken[at] = true
				}
				all = append(all, &listenerv3.FilterChain{
					FilterChainMatch: ofName(name, subnets),
					Filters:          []*listenerv3.Filter{t.filter(fmt.Sprintf("spec.tls[%d].route", i), tls.GetRoute())},
				})
			}
		}
	}
	return all
}

// within returns the names that hosts cover, or what hosts leave of a wildcard.
func within(names, hosts []string) []string {
	var all []string
	for _, name := range names {
		name = strings.ToLower(name)
		for _, host := range hosts {
			switch {
			case host == name || gateway.Covers(host, name):
				all = append(all, name)
			case gateway.Covers(name, host):
				all = append(all, host)
			}
		}
	}
	return all
}

// ofName returns the condition on the server name of a TLS connection; "*" is any,
// also none.
func ofName(name string, subnets []string) *listenerv3.FilterChainMatch {
	m := &listenerv3.FilterChainMatch{TransportProtocol: "tls", PrefixRanges: ranges(subnets)}
	if name != "*" {
		m.ServerNames = []string{name}
	}
	return m
}
