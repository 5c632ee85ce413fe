package route

import (
	"maps"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/gateway"
	"meshlog.dev/services/mesh/xds/piece"
)

// routerParts returns the parts of a router's RouteConfigurations: one for each
// port with plain HTTP, and one for each server that decrypts HTTPS (GW-7).
func routerParts(r *index.Reader, class index.RDSClass) []piece.Part {
	ports, problems := gateway.Ports(r, class.Gateways, class.Listens)
	var parts []piece.Part
	add := func(p *gateway.Port, routes string, servers []gateway.Server, guarded []string) {
		parts = append(parts, portParts(r, class, p, routes, servers, guarded)...)
	}
	for _, p := range ports {
		if p.Form == gateway.Requests {
			add(p, p.Routes(), p.Servers, nil)
		}
		for i, s := range p.Servers {
			if s.Routes != "" && !s.Closed {
				add(p, s.Routes, p.Servers[i:i+1], p.Guarded(i))
			}
		}
	}
	return append(parts, problems...)
}

// portParts returns the virtual hosts of servers of a port: the hosts that both these
// and the VirtualServices of their Gateways name (GW-6).
func portParts(r *index.Reader, class index.RDSClass, p *gateway.Port, routes string, servers []gateway.Server, guarded []string) []piece.Part {
	hosts := map[string]*routerCandidate{}
	host := func(name string) *routerCandidate {
		if hosts[name] == nil {
			hosts[name] = &routerCandidate{routerHost: routerHost{routes: routes, port: servers[0].Number}}
		}
		return hosts[name]
	}
	for _, s := range servers {
		for _, vs := range r.VirtualServices(class.Scope, s.Gateway) {
			if !vs.HTTP {
				continue
			}
			for _, name := range s.Intersect(vs.Key.Namespace, vs.Hosts) {
				if len(guarded) > 0 && s.Guards(guarded, strings.TrimSuffix(name, ".")) {
					continue
				}
				h, b := host(name), Binding{s.Gateway, vs}
				if !slices.Contains(h.bindings, b) {
					h.bindings = append(h.bindings, b)
				}
				h.redirect = h.redirect || s.HTTPSRedirect
			}
		}
		if s.HTTPSRedirect { // also without a route (GW-8)
			for _, h := range s.Hosts {
				host(h.Name).redirect = true
			}
		}
	}
	parts := []piece.Part{head{routes: routes}}
	if len(guarded) > 0 {
		parts = append(parts, misdirected{routes, servers[0].Number, strings.Join(guarded, "\n")})
	}
	if len(hosts) == 0 {
		return append(parts, blackhole{routes, servers[0].Number})
	}
	return append(parts, merged(r, class, hosts)...)
}

// merged merges virtual hosts with equal routes into one (VS-11).
func merged(r *index.Reader, class index.RDSClass, hosts map[string]*routerCandidate) []piece.Part {
	at := map[routerHost]int{} // from the part without hosts to its index
	var parts []routerHost
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		part := hosts[name].routerHost
		part.bound = Bind(r, class.Sources, class.Scope, hosts[name].bindings)
		domains := name
		if d := absolute(name); d != "" && hosts[d] == nil {
			domains += "\n" + d
		}
		i, ok := at[part]
		if !ok {
			i = len(parts)
			at[part] = i
			parts = append(parts, part)
			parts[i].hosts = domains
			continue
		}
		parts[i].hosts += "\n" + domains
	}
	all := make([]piece.Part, len(parts))
	for i, p := range parts {
		all[i] = p
	}
	return all
}

// routerCandidate is a virtual host with the VirtualServices that route it.
type routerCandidate struct {
	routerHost
	bindings []Binding
}

// routerHost is the part for a virtual host of a router.
type routerHost struct {
	routes   string
	hosts    string // with their absolute forms, one per line
	port     uint32
	redirect bool  // to HTTPS
	bound    Bound // the first VirtualService wins (VS-5)
}

func (h routerHost) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	hosts := strings.Split(h.hosts, "\n")
	out := &routev3.VirtualHost{Name: hostPort(hosts[0], h.port)}
	for _, host := range hosts {
		out.Domains = append(out.Domains, written(host))
	}
	if h.redirect {
		out.RequireTls = routev3.VirtualHost_ALL
	}
	var problems []problem.Diagnostic
	for name, key := range h.bound.All() {
		routes, found := Translate(key, r.VirtualService(key), NewOptions(r, h.bound.Caller, h.port, name))
		out.Routes = append(out.Routes, routes...)
		problems = append(problems, found...)
	}
	if len(out.Routes) == 0 && !h.redirect {
		return nil, problems
	}
	// Routes that match every request come last, whichever VirtualService has
	// them.
	var last []*routev3.Route
	out.Routes = slices.DeleteFunc(out.Routes, func(r *routev3.Route) bool {
		all := catchesAll(r.GetMatch())
		if all {
			last = append(last, r)
		}
		return all
	})
	out.Routes = append(out.Routes, last...)
	return partialHost(h.routes, out), problems
}

// misdirected is the part for hosts of which a request must come on another connection:
// one whose client is verified (MTLS-15). A browser that has sent it on this one, because
// the certificate has the name too, asks again on a new one.
type misdirected struct {
	routes string
	port   uint32
	hosts  string // one per line
}

func (m misdirected) Make(*index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	h := &routev3.VirtualHost{Name: hostPort("misdirected", m.port), Routes: []*routev3.Route{{
		Name: "misdirected", Match: everything(),
		Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 421}},
	}}}
	for host := range strings.SplitSeq(m.hosts, "\n") {
		h.Domains = append(h.Domains, written(host))
		if d := absolute(host); d != "" {
			h.Domains = append(h.Domains, written(d))
		}
	}
	return partialHost(m.routes, h), nil
}

// blackhole is the part for a port without routes: it answers 404 (VS-9,
// GW-19).
type blackhole struct {
	routes string
	port   uint32
}

func (b blackhole) Make(*index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	return partialHost(b.routes, &routev3.VirtualHost{Name: hostPort("blackhole", b.port), Domains: []string{"*"}}), nil
}
