package route

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/gateway"
	"meshlog.dev/services/mesh/xds/piece"
)

// routerParts is what the RouteConfigurations of routers are made of: one a
// port with plain HTTP (GW-7).
func routerParts(r *index.Reader, class index.RDSClass) []piece.Part {
	ports, problems := gateway.Ports(r, class.Gateways)
	var parts []piece.Part
	for _, p := range ports {
		if p.Kind == gateway.HTTP {
			parts = append(parts, portParts(r, class, p)...)
		}
	}
	for _, d := range problems {
		parts = append(parts, diagnosed{d})
	}
	return parts
}

// portParts is the virtual hosts of a port: all that its servers and the
// VirtualServices that are bound to their Gateways both name (GW-6).
func portParts(r *index.Reader, class index.RDSClass, p *gateway.Port) []piece.Part {
	hosts := map[string]*routerCandidate{}
	host := func(name string) *routerCandidate {
		if hosts[name] == nil {
			hosts[name] = &routerCandidate{routerHost: routerHost{routes: p.Routes(), port: p.Number}}
		}
		return hosts[name]
	}
	for _, s := range p.Servers {
		for _, vs := range r.VirtualServices(class.Scope, s.Gateway) {
			if !vs.HTTP {
				continue
			}
			for _, name := range s.Intersect(vs.Key.Namespace, vs.Hosts) {
				h := host(name)
				h.add(s.Gateway, vs)
				h.redirect = h.redirect || s.HTTPSRedirect
			}
		}
		if s.HTTPSRedirect { // even where nothing is routed (GW-8)
			for _, h := range s.Hosts {
				host(h.Name).redirect = true
			}
		}
	}
	parts := []piece.Part{head{routes: p.Routes()}}
	if len(hosts) == 0 {
		return append(parts, blackhole{p.Routes(), p.Number})
	}
	return append(parts, merged(r, class, hosts)...)
}

// merged is the virtual hosts, of those that are routed alike one (VS-11).
func merged(r *index.Reader, class index.RDSClass, hosts map[string]*routerCandidate) []piece.Part {
	at := map[routerHost]int{} // without hosts, to its place among the parts
	var parts []routerHost
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		part := hosts[name].part(r, class)
		i, ok := at[part]
		if !ok {
			i = len(parts)
			at[part] = i
			parts = append(parts, part)
			parts[i].hosts = name
			continue
		}
		parts[i].hosts += "\n" + name
	}
	all := make([]piece.Part, len(parts))
	for i, p := range parts {
		all[i] = p
	}
	return all
}

// routerCandidate is a virtual host and what routes it.
type routerCandidate struct {
	routerHost
	bound []binding
}

// binding is a VirtualService bound to a Gateway.
type binding struct {
	gateway string
	vs      *index.VirtualServiceHead
}

func (h *routerCandidate) add(gateway string, vs *index.VirtualServiceHead) {
	b := binding{gateway, vs}
	if !slices.Contains(h.bound, b) {
		h.bound = append(h.bound, b)
	}
}

// part is the virtual host without its name.
func (h *routerCandidate) part(r *index.Reader, class index.RDSClass) routerHost {
	lines := make([]string, len(h.bound))
	heads := make([]*index.VirtualServiceHead, len(h.bound))
	for i, b := range h.bound {
		lines[i] = b.gateway + " " + b.vs.Key.Row()
		heads[i] = b.vs
	}
	h.virtualServices = strings.Join(lines, "\n")
	h.sources = Relevant(class.Sources, heads...)
	h.scope = Narrow(r, class.Scope, heads...)
	return h.routerHost
}

// routerHost is a virtual host of a router.
type routerHost struct {
	routes   string // the RouteConfiguration
	hosts    string // a line each
	port     uint32
	redirect bool // to HTTPS
	// virtualServices are those that route it, the one that counts first in
	// front (VS-5): a line each, of the Gateway, a space and the row of the key.
	virtualServices string
	sources         index.SelectorSet
	scope           index.Scope
}

// Make implements piece.Part.
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
	for line := range strings.SplitSeq(h.virtualServices, "\n") {
		name, row, ok := strings.Cut(line, " ")
		if !ok {
			continue // only a redirect
		}
		key, _, err := ident.ParseRow(row)
		if err != nil {
			panic(fmt.Sprintf("row %q is a key's: %v", row, err))
		}
		vs := r.VirtualService(key)
		if vs == nil {
			continue
		}
		routes, found := Translate(key, vs, options(r, h.scope, h.port, name, h.sources))
		out.Routes = append(out.Routes, routes...)
		problems = append(problems, found...)
	}
	if len(out.Routes) == 0 && !h.redirect {
		return nil, problems
	}
	// What catches all comes last, whichever VirtualService it is from.
	slices.SortStableFunc(out.Routes, func(a, b *routev3.Route) int {
		return boolCompare(catchesAll(a.GetMatch()), catchesAll(b.GetMatch()))
	})
	return partialHost(h.routes, out), problems
}

func boolCompare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// blackhole answers 404 where no host is routed (VS-9, GW-19).
type blackhole struct {
	routes string
	port   uint32
}

// Make implements piece.Part.
func (b blackhole) Make(*index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	return partialHost(b.routes, &routev3.VirtualHost{Name: hostPort("blackhole", b.port), Domains: []string{"*"}}), nil
}
