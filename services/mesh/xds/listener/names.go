package listener

import (
	"fmt"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds/gateway"
	"meshlog.dev/services/mesh/xds/piece"
)

// chooser puts the chains of a port for TLS together. Envoy refuses two that match the
// same, so each server name has one chain, or one for each set of addresses.
type chooser struct {
	mesh    *meshconfig.MeshConfig
	trust   index.Trust
	port    *gateway.Port
	from    proxy.Certificates   // of the router
	alpn    bool                 // requests may offer another protocol than connections
	needs                        // of the services that requests may go to
	demand  bool                 // the router asks for certificates when a client needs one
	longest *durationpb.Duration // of a connection that a server decrypts; nil: for ever
	owner   map[string]int       // the server of each host
	taken   map[string]bool      // names, each with its addresses
	routed  []*listenerv3.FilterChain

	problems []problem.Diagnostic
}

func newChooser(r *index.Reader, p *gateway.Port, from proxy.Certificates, more needs) *chooser {
	c := &chooser{
		mesh: r.Mesh(), trust: r.Trust(), port: p, from: from, alpn: offers(r, from), needs: more,
		demand: r.CertificatesOnDemand(), longest: limit(r.MaxConnectionDuration()),
		owner: map[string]int{}, taken: map[string]bool{},
	}
	for i := range p.Servers {
		s := &p.Servers[i]
		if s.TLS.GetMode() == networking.ServerTLSSettings_ISTIO_MUTUAL && from == (proxy.Certificates{}) {
			c.uncertified(s)
		}
		if s.AutoPassthrough { // its hosts are those of services, not server names
			continue
		}
		for _, h := range s.Hosts {
			c.owner[h.Name] = i
		}
	}
	return c
}

// uncertified closes a server for clients of the mesh at routers that have no certificate
// of the mesh (MTLS-16).
func (c *chooser) uncertified(s *gateway.Server) {
	s.Closed = true
	c.problems = append(c.problems, problem.Diagnostic{
		Severity: problem.Info, Code: "no-certificate", Key: s.Key, Field: s.Field + ".tls.mode",
		Reason: "routers whose metadata names no certificate of the mesh (SDS_CLUSTER, or TLS_SERVER_CERT_CHAIN and TLS_SERVER_KEY) cannot take mutual TLS of the mesh",
		Advice: "give such routers an agent, the socket of SPIRE, or files",
		Effect: "they close every connection to the server's hosts",
	})
}

// forwards reports whether a server forwards connections as they are.
func forwards(s *gateway.Server) bool { return s.TLS == nil && !s.Closed && !s.AutoPassthrough }

// route adds the chains for the routes of a VirtualService at a server. What a server
// decrypts follows TLS routes, by the server name, and then TCP routes.
func (c *chooser) route(t *connector, vs *networking.VirtualService, server int, hosts []string) {
	s := &c.port.Servers[server]
	if s.Closed {
		return
	}
	if s.TLS != nil {
		t.longest = c.longest
	}
	may := func(name string) bool { // a name is not for another server that has it
		other, has := c.owner[name]
		return !has || other == server || forwards(&c.port.Servers[other])
	}
	c.add(s, t.byName(vs, hosts, c.taken, may, !forwards(s))...)
	if !forwards(s) {
		var names []string
		for _, name := range hosts {
			if may(name) && !c.taken[name+" "] {
				names = append(names, name)
			}
		}
		t.sources = true
		if routes := arrange(t.decrypted(t.tcpRoutes(vs))); len(routes) > 0 {
			for _, m := range c.matches(s, names) {
				for _, chain := range ofRoutes(routes) {
					from := chain.GetFilterChainMatch().GetSourcePrefixRanges()
					chain.FilterChainMatch = proto.Clone(m).(*listenerv3.FilterChainMatch)
					chain.FilterChainMatch.SourcePrefixRanges = from
					c.add(s, chain)
				}
			}
			for _, name := range names {
				c.taken[name+" "] = true
			}
		}
	}
	c.problems = append(c.problems, t.problems...)
}

// decrypted leaves out routes for some destinations: what a router decrypts has no other
// destination than the router.
func (t *connector) decrypted(routes []tcpRoute) []tcpRoute {
	return slices.DeleteFunc(routes, func(r tcpRoute) bool {
		if r.to.IsValid() {
			t.ownAddress(r.at + ".destinationSubnets")
		}
		return r.to.IsValid()
	})
}

func (t *connector) ownAddress(at string) {
	t.warn(at, "the router decrypts these connections, so all of them are for its own address", "remove it")
}

func (c *chooser) add(s *gateway.Server, all ...*listenerv3.FilterChain) {
	for _, chain := range all {
		c.routed = append(c.routed, c.decrypt(s, chain))
	}
}

// matches returns the conditions for connections with these names: one for "*", which
// is any name, also none, and one for the others. It reports those that Envoy refuses.
func (c *chooser) matches(s *gateway.Server, names []string) []*listenerv3.FilterChainMatch {
	m := &listenerv3.FilterChainMatch{TransportProtocol: "tls"}
	for _, name := range names {
		switch {
		case name == "*" || slices.Contains(m.ServerNames, name):
		case !matchable(name):
			c.problems = append(c.problems, problem.Diagnostic{
				Severity: problem.Warning, Code: "gateway", Key: s.Key, Field: s.Field + ".hosts",
				Reason: fmt.Sprintf("Envoy cannot match the server name %s: what follows the * must begin with a dot", name),
				Advice: "write a host like *.example.com", Effect: "connections that go there are closed",
			})
		default:
			m.ServerNames = append(m.ServerNames, name)
		}
	}
	var all []*listenerv3.FilterChainMatch
	if len(m.ServerNames) > 0 {
		all = append(all, m)
	}
	if slices.Contains(names, "*") {
		all = append(all, ofName("*", nil))
	}
	return all
}

// all returns the chains of the port; none if no server takes connections.
func (c *chooser) all() []*listenerv3.FilterChain {
	open, closed := slices.Clone(c.routed), []*listenerv3.FilterChain(nil)
	ends := slices.ContainsFunc(c.port.Servers, func(s gateway.Server) bool { return s.TLS != nil })
	var everywhere []*listenerv3.FilterChain // whatever the address is
	for i := range c.port.Servers {
		s := &c.port.Servers[i]
		if s.AutoPassthrough {
			continue
		}
		if s.Routes != "" && !s.Closed {
			for _, m := range c.matches(s, hostsOf(s)) {
				name := listenerName(c.port.Bind, c.port.Number)
				filter := manager(c.mesh, "outbound_"+name, s.Routes, filters(false, c.alpn, c.needs), func(m *hcmv3.HttpConnectionManager) {
					edge(c.mesh)(m)
					m.CommonHttpProtocolOptions = &corev3.HttpProtocolOptions{MaxConnectionDuration: c.longest}
				})
				everywhere = append(everywhere, c.decrypt(s, &listenerv3.FilterChain{FilterChainMatch: m, Filters: []*listenerv3.Filter{filter}}))
			}
			continue
		}
		// A name without a chain would go to the wildcard of another server.
		if forwards(s) && !ends {
			continue
		}
		for _, name := range hostsOf(s) {
			if name != "*" && matchable(name) && !c.taken[name+" "] {
				closed = append(closed, &listenerv3.FilterChain{FilterChainMatch: ofName(name, nil), Filters: []*listenerv3.Filter{forward(piece.BlackHoleCluster)}})
			}
		}
	}
	if len(open)+len(everywhere) == 0 {
		return nil
	}
	// Envoy chooses by addresses before it looks at names.
	everywhere = append(everywhere, closed...)
	all := append(open, everywhere...)
	if ranges := rangesOf(open); len(ranges) > 0 {
		for _, chain := range everywhere {
			chain = proto.Clone(chain).(*listenerv3.FilterChain)
			chain.FilterChainMatch.PrefixRanges = ranges
			all = append(all, chain)
		}
	}
	return all
}

func hostsOf(s *gateway.Server) []string {
	var names []string
	for _, h := range s.Hosts {
		if !slices.Contains(names, h.Name) {
			names = append(names, h.Name)
		}
	}
	return names
}

// rangesOf returns the addresses that some chains are for.
func rangesOf(chains []*listenerv3.FilterChain) []*corev3.CidrRange {
	var all []*corev3.CidrRange
	for _, c := range chains {
		for _, r := range c.GetFilterChainMatch().GetPrefixRanges() {
			if !slices.ContainsFunc(all, func(o *corev3.CidrRange) bool { return proto.Equal(o, r) }) {
				all = append(all, r)
			}
		}
	}
	return all
}
