package listener

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds/gateway"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/policy"
	"meshlog.dev/services/mesh/xds/route"
)

// routerNames is the part for a router's listener that takes TLS connections by the
// server name that clients ask for. Servers decrypt them (GW-9), or forward them as
// they are (GW-10).
type routerNames struct {
	at       edgeAddress
	gateways index.SelectorSet // of the servers
	listens  index.Listens
	policies policy.Connections
	from     proxy.Certificates
	needs
	// scope has the services and rules of the clusters to which connections of other
	// networks are passed on; zero: there is no server for them.
	scope index.Scope
	auto  bool
	bound route.Bound
	// hosts has for each VirtualService of bound a line: which server of the port it
	// routes, and the hosts that it may route there.
	hosts string
}

func namesPart(r *index.Reader, class index.LDSClass, p *gateway.Port, more needs) piece.Part {
	var bindings []route.Binding
	var hosts []string
	auto, scope := false, index.Scope{}
	for i, s := range p.Servers {
		if s.AutoPassthrough {
			auto, scope = true, class.Scope
		}
		if s.AutoPassthrough || s.Closed || s.Routes != "" {
			continue
		}
		for _, vs := range r.VirtualServices(class.Scope, s.Gateway) {
			both := s.Intersect(vs.Key.Namespace, vs.Hosts)
			if len(both) > 0 && (vs.TLS || vs.TCP && s.TLS != nil) {
				bindings = append(bindings, route.Binding{Gateway: s.Gateway, VirtualService: vs})
				hosts = append(hosts, strconv.Itoa(i)+" "+strings.Join(both, " "))
			}
		}
	}
	return routerNames{
		at: addressOf(p), gateways: class.Gateways, listens: class.Listens, policies: policy.OfConnections(class), from: class.Certificates,
		needs: more, auto: auto, scope: scope,
		bound: route.Bind(r, class.Sources, class.Scope, bindings), hosts: strings.Join(hosts, "\n"),
	}
}

// Make returns no listener if no server takes connections (VST-9).
func (n routerNames) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	p := gateway.Find(r, n.gateways, n.listens, n.at.bind, n.at.port)
	if p == nil {
		return nil, nil
	}
	c := newChooser(r, p, n.from, n.needs)
	hosts := strings.Split(n.hosts, "\n")
	for name, key := range n.bound.All() {
		fields := strings.Fields(hosts[0])
		hosts = hosts[1:]
		if server, err := strconv.Atoi(fields[0]); err == nil && server < len(p.Servers) {
			t := &connector{Options: route.NewOptions(r, n.bound.Caller, p.Servers[server].Number, name), key: key, defaults: true}
			c.route(t, r.VirtualService(key), server, fields[1:])
		}
	}
	all := c.all()
	if n.auto {
		all = append(all, passedOn(r, p, n.scope)...)
	}
	if len(all) == 0 {
		return nil, c.problems
	}
	policies, problems := n.policies.Filters(r)
	pieces := edgeListener(c.mesh, n.at, guarded(policies, all...)...)
	l := pieces[0].Message.(*listenerv3.Listener)
	l.ListenerFiltersTimeout = nil // Envoy's default: a client that sends no server name is closed after 15 s
	l.ListenerFilters = append(l.ListenerFilters, inspector("envoy.filters.listener.tls_inspector", &tlsinspectorv3.TlsInspector{}))
	return pieces, append(c.problems, problems...)
}

// guarded puts the filters of policies before what the chains do with connections. Chains
// for requests have the filters of policies in their managers.
func guarded(policies []*listenerv3.Filter, all ...*listenerv3.FilterChain) []*listenerv3.FilterChain {
	for _, chain := range all {
		filters := chain.GetFilters()
		if last := len(filters) - 1; filters[last].GetName() != requestsManager {
			chain.Filters = slices.Concat(filters[:last], policies, filters[last:])
		}
	}
	return all
}

// byName returns the chains of the TLS routes of a VirtualService (VST-1), for the
// server names within hosts that may says it may have. Of equal conditions the first
// counts, as taken notes. What is decrypted has no other destination than the router.
func (t *connector) byName(vs *networking.VirtualService, hosts []string, taken map[string]bool, may func(name string) bool, decrypted bool) []*listenerv3.FilterChain {
	var all []*listenerv3.FilterChain
	for i, tls := range vs.GetTls() {
		for j, m := range tls.GetMatch() {
			if !t.Applies(m) {
				continue
			}
			at := func(field string) string { return fmt.Sprintf("spec.tls[%d].match[%d].%s", i, j, field) }
			subnets := slices.Sorted(slices.Values(m.GetDestinationSubnets()))
			if decrypted && len(subnets) > 0 {
				t.ownAddress(at("destinationSubnets"))
				continue
			}
			for _, name := range within(m.GetSniHosts(), hosts) {
				switch place := name + " " + strings.Join(subnets, " "); {
				case taken[place]:
					continue
				case !matchable(name) && name != "*":
					t.warn(at("sniHosts"),
						fmt.Sprintf("Envoy cannot match the server name %s: what follows the * must begin with a dot", name), "write a host like *.example.com")
					continue
				case !may(name):
					t.warn(at("sniHosts"), fmt.Sprintf("another server of port %d has %s", t.Port, name), "route it at the Gateway of that server")
					continue
				default:
					taken[place] = true
				}
				all = append(all, &listenerv3.FilterChain{
					FilterChainMatch: ofName(name, subnets),
					Filters:          t.byServerName(fmt.Sprintf("spec.tls[%d].route", i), tls.GetRoute(), decrypted),
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
