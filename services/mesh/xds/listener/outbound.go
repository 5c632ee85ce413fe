package listener

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/route"
)

// sidecarParts returns the parts of the listeners for what sidecars call. They
// have virtualOutbound even if they see no service: redirected connections
// would otherwise be refused (LSN-1).
func sidecarParts(r *index.Reader, class index.LDSClass) []piece.Part {
	o := &outbound{r: r, class: class, needs: needsOf(r, class.Scope), defaults: shaped(r.Mesh()) != nil, entries: map[place]*entry{}}
	o.listen(r.Egress(class.Scope))
	var parts []piece.Part
	if class.Bind {
		for _, p := range class.Inbound.Ports() { // the workload listens there
			o.reserve(place{loopback, p.Port})
		}
	} else {
		parts = append(parts, virtualOutbound{class.Outbound})
		o.reserve(place{anyAddress, uint32(r.Mesh().GetProxyListenPort())})
	}
	if port := r.Mesh().GetProxyHttpPort(); port > 0 {
		parts = append(parts, proxied{uint32(port), offers(r, class.Certificates), o.needs})
		o.reserve(place{loopback, uint32(port)})
	}
	o.unreachable()
	return append(append(parts, o.parts()...), o.problems...)
}

// outbound collects the listeners of a class of sidecars.
type outbound struct {
	r        *index.Reader
	class    index.LDSClass
	defaults bool  // the MeshConfig says something about connections
	needs    needs // of requests
	entries  map[place]*entry
	problems []piece.Part
	spot     // of the egress listener that is added
}

func (o *outbound) report(key ident.Key, field, reason, advice, effect string) {
	o.problems = append(o.problems, piece.Problem{
		Severity: problem.Warning, Code: "conflict", Key: key, Field: field, Reason: reason, Advice: advice, Effect: effect,
	})
}

// reserve takes a place for the sidecar itself: no two listeners may have one
// address.
func (o *outbound) reserve(at place) {
	e := o.entries[at]
	if e == nil {
		return
	}
	delete(o.entries, at)
	for _, s := range e.services {
		o.report(s.Key, "spec.ports", fmt.Sprintf("sidecars, or the workloads beside them, use port %d themselves", at.port), "use another port",
			"sidecars have no listener for the port")
	}
}

type place struct {
	address string
	port    uint32
}

// entry is a listener with its services.
type entry struct {
	place
	bind    bool   // it binds its port, because nothing redirects connections to it
	own     bool   // a Sidecar has it, so other services are not called here
	routes  string // empty: no routes for requests
	grpcWeb bool
	// all gets every connection that no other field takes.
	all *user
	// some get the connections to some addresses or for some server names.
	some map[condition]*user
	// headless get the connections to their endpoints.
	headless []*index.Service
	// services are all of these, and those whose requests arrive here.
	services []*index.Service
}

type user struct {
	service *index.Service
	port    index.Port
	routing *route.HostIndex // VirtualServices with TCP routes
}

// condition selects the connections that a chain takes.
type condition struct {
	cidr       string
	serverName string // lower case
}

// entry returns the listener at a place and adds s to its services.
func (o *outbound) entry(address string, port uint32, s *index.Service) *entry {
	at := place{address, port}
	e := o.entries[at]
	if e == nil {
		e = &entry{place: at, bind: o.bind, own: o.own, some: map[condition]*user{}}
		o.entries[at] = e
	}
	e.services = append(e.services, s)
	return e
}

// add puts a service's port on its listeners (LSN-5 to LSN-7, LSN-10).
func (o *outbound) add(s *index.Service, p index.Port) {
	u := &user{s, p, o.routing}
	if p.Protocol.IsHTTP() {
		if !o.taken(p.Number) {
			o.entry(o.shared, p.Number, s).addRequests(u, route.ForPort(p.Number))
		}
		return
	}
	switch {
	case s.Resolution == index.DynamicDNS:
		o.addNamed(u)
		return
	case o.fixed || len(s.Addresses) == 0:
		o.addUnaddressed(u)
		return
	}
	for _, a := range s.Addresses {
		pre, ok := prefix(a)
		switch {
		case !ok || pre.Addr().IsUnspecified() && pre.IsSingleIP():
			o.addUnaddressed(u)
		case pre.IsSingleIP():
			o.addAddress(u, pre)
		default:
			if o.taken(p.Number) {
				continue
			}
			e := o.entry(o.shared, p.Number, s)
			if p.Protocol == index.Sniffed {
				e.addRequests(u, route.ForPort(p.Number))
			}
			c := condition{cidr: pre.String(), serverName: serverName(u)}
			if !matchable(c.serverName) {
				c.serverName = "" // the addresses tell its connections apart
			}
			e.some[c] = o.settle(e.some[c], u)
		}
	}
}

// addAddress gives an address to the service, unless a senior one has it.
func (o *outbound) addAddress(u *user, address netip.Prefix) {
	if e := o.entries[place{address.Addr().String(), u.port.Number}]; e != nil && e.own && !o.own {
		return // a listener of a Sidecar has it
	}
	e := o.entry(address.Addr().String(), u.port.Number, u.service)
	if e.all != nil && e.all.service == u.service {
		return
	}
	e.all = o.settle(e.all, u)
	e.routes, _ = route.Sniffed(e.all.service, e.all.port)
}

// addUnaddressed puts a service without an address on the listener that
// services of the port share.
func (o *outbound) addUnaddressed(u *user) {
	name := serverName(u)
	if o.taken(u.port.Number) {
		return
	}
	if !matchable(name) {
		o.problems = append(o.problems, piece.Problem{
			Severity: problem.Warning, Code: "listener", Key: u.service.Key, Field: "spec.hosts",
			Reason: fmt.Sprintf("Envoy cannot match the server name %s: what follows the * must begin with a dot", name),
			Advice: "write a host like *.example.com, name the hosts one by one, or give the service addresses",
			Effect: fmt.Sprintf("sidecars treat connections to port %d of the host as those to an unknown host", u.port.Number),
		})
		return
	}
	e := o.entry(o.shared, u.port.Number, u.service)
	if u.port.Protocol == index.Sniffed {
		e.addRequests(u, route.ForPort(u.port.Number))
	}
	switch {
	case u.service.Headless && !o.fixed:
		e.headless = append(e.headless, u.service)
	case name != "":
		c := condition{serverName: name}
		e.some[c] = o.settle(e.some[c], u)
	default:
		e.all = o.settle(e.all, u)
	}
}

// serverName returns the server name that TLS clients ask for; empty: unknown.
func serverName(u *user) string {
	if !u.port.Protocol.IsTLS() || u.service.Hostname == "*" {
		return ""
	}
	return strings.ToLower(u.service.Hostname)
}

// matchable reports whether Envoy accepts a server name as a condition: it
// refuses a whole listener for a name such as *example.com.
func matchable(serverName string) bool {
	rest, wildcard := strings.CutPrefix(serverName, "*")
	return !wildcard || strings.HasPrefix(rest, ".")
}

func (e *entry) addRequests(u *user, routes string) {
	e.routes = routes
	e.grpcWeb = e.grpcWeb || u.port.Protocol == index.GRPCWeb
}

// settle returns which of two services gets connections that only one can have:
// the senior one (LSN-6). It reports the other.
func (o *outbound) settle(have, u *user) *user {
	if have == nil {
		return u
	}
	winner, loser := have, u
	if route.Senior(u.service, have.service, o.class.Cluster) {
		winner, loser = u, have
	}
	if len(winner.service.Addresses) > 0 && len(loser.service.Addresses) > 0 && winner.service.Apart(loser.service) {
		return winner // each cluster has its own virtual IPs
	}
	o.report(loser.service.Key, "spec.ports", fmt.Sprintf("connections to port %d of %s cannot be told from those to %s of %s",
		loser.port.Number, loser.service.Hostname, winner.service.Hostname, winner.service.Key),
		"give each an address, or another port", "sidecars send them to the older service")
	return winner
}

func (o *outbound) parts() []piece.Part {
	all := slices.SortedFunc(maps.Values(o.entries), func(a, b *entry) int {
		return cmp.Or(cmp.Compare(a.port, b.port), cmp.Compare(a.address, b.address))
	})
	var parts []piece.Part
	for _, e := range all {
		parts = append(parts, o.listener(e)...)
	}
	return parts
}

func (o *outbound) listener(e *entry) []piece.Part {
	name := listenerName(e.address, e.port)
	h := head{address: e.address, port: e.port, bind: e.bind}
	var parts []piece.Part
	// If only requests arrive, at the listener's own port, there is nothing else
	// to let through.
	h.others = e.all != nil || len(e.some) > 0 || len(e.headless) > 0
	alone := e.bind && !h.others
	if e.routes != "" {
		h.requests = !alone
		parts = append(parts, requests{name, e.routes, e.grpcWeb, !alone, offers(o.r, o.class.Certificates), o.needs})
	}
	conditions := slices.SortedFunc(maps.Keys(e.some), func(a, b condition) int {
		return cmp.Or(cmp.Compare(a.cidr, b.cidr), cmp.Compare(a.serverName, b.serverName))
	})
	for _, c := range conditions {
		h.serverNames = h.serverNames || c.serverName != ""
		parts = append(parts, o.connections(name, e.some[c], c, false))
	}
	if len(e.headless) > 0 {
		parts = append(parts, toEndpoints{name, e.port, o.lines(e.headless), o.defaults})
	}
	switch {
	case e.all != nil:
		parts = append(parts, o.connections(name, e.all, condition{}, len(parts) > 0))
	case !alone:
		parts = append(parts, others{name, o.class.Outbound})
	}
	return append([]piece.Part{h}, parts...)
}

func (o *outbound) connections(listener string, u *user, c condition, fallback bool) piece.Part {
	part := connections{
		listener: listener, service: u.service.ServiceID, port: u.port.Number,
		defaults: o.defaults, rule: o.r.ConnectionRule(o.class.Scope, u.service.Namespace, u.service.Hostname),
		cidr: c.cidr, serverName: c.serverName != "", fallback: fallback,
	}
	if vs := u.routing.Of(u.service.Hostname); vs != nil {
		part.virtualService = vs.Key
		part.caller = route.CallerOf(o.r, o.class.Sources, o.class.Scope, vs)
	}
	return part
}
