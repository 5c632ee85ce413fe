package route

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/hostname"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/xds/gateway"
	"meshlog.dev/services/mesh/xds/piece"
)

// sidecarParts returns the parts of a sidecar's RouteConfigurations.
func sidecarParts(r *index.Reader, class index.RDSClass) []piece.Part {
	b := &sidecar{r: r, class: class, suffix: hostname.Suffix(r.DomainSuffix()), tables: map[string]*portHosts{}}
	listeners := r.Egress(class.Scope)
	for i := range listeners {
		b.listen(&listeners[i], index.OwnPorts(listeners))
	}
	for _, hosts := range b.tables {
		b.addOthers(hosts)
	}
	return b.parts()
}

// listen adds the virtual hosts of an egress listener. Ports are those of listeners of
// their own: only these have the hosts of the port (SC-3).
func (b *sidecar) listen(e *index.Egress, ports map[uint32]bool) {
	routing := newRouting(e.VirtualServices)
	for _, s := range e.Services {
		vs := routing.hosts.Of(s.Hostname)
		own := b.class.Namespace != "" && b.class.Namespace == hostname.Home(s.Hostname, b.r.DomainSuffix())
		for _, p := range s.Ports {
			switch {
			case e.Socket() && e.Protocol.IsHTTP():
				b.addService(s, p, vs, own, b.table(e.Bind, 0, routing))
			case e.Socket(), e.Port != 0 && !e.Protocol.IsHTTP():
			case e.Port != 0:
				b.addService(s, p, vs, own, b.table(ForPort(e.Port), e.Port, routing))
			case piece.TakesRequests(p.Protocol) && !ports[p.Number]:
				b.addService(s, p, vs, own, b.table(ForPort(p.Number), p.Number, routing))
				b.addSniffed(s, p, vs)
			}
		}
	}
}

// sidecar collects the virtual hosts of a class of sidecars.
type sidecar struct {
	r      *index.Reader
	class  index.RDSClass
	suffix string

	tables map[string]*portHosts // by the name of the RouteConfiguration
	alone  []piece.Part          // of services with a RouteConfiguration of their own
}

// routing is the VirtualServices with routes for requests that a listener has.
type routing struct {
	virtualServices []*index.VirtualServiceHead
	hosts           *HostIndex
}

func newRouting(all []*index.VirtualServiceHead) *routing {
	heads := slices.DeleteFunc(slices.Clone(all), func(vs *index.VirtualServiceHead) bool { return !vs.HTTP })
	return &routing{heads, NewHostIndex(heads)}
}

// portHosts are the virtual hosts of a port, or of a Unix socket.
type portHosts struct {
	*routing
	routes     string // the name of the RouteConfiguration
	port       uint32 // 0: requests to all ports arrive here
	candidates []*candidate
	services   map[string]bool    // lower-case hosts of services
	applied    map[ident.Key]bool // VirtualServices that route a service here
}

// candidate is a virtual host whose domains are not settled yet.
type candidate struct {
	virtualHost
	service *index.Service // nil: a host that only a VirtualService has
	lost    []string       // domains that other virtual hosts have
}

// senior reports whether c keeps a domain that o claims too: a service wins
// over a mere host, then Senior decides.
func (c *candidate) senior(o *candidate, cluster string) bool {
	if c.service == nil || o.service == nil {
		return c.service != nil || o.service == nil && c.host < o.host
	}
	return Senior(c.service, o.service, cluster)
}

// Senior reports whether a wins where callers in a cluster can have only one of
// two services: a Kubernetes Service, then one of that cluster, then the older
// one, then the first by name.
func Senior(a, b *index.Service, cluster string) bool {
	if a.Kubernetes != b.Kubernetes {
		return a.Kubernetes
	}
	if a.IsIn(cluster) != b.IsIn(cluster) {
		return a.IsIn(cluster)
	}
	if !a.Created.Equal(b.Created) {
		return !a.Created.IsZero() && (b.Created.IsZero() || a.Created.Before(b.Created))
	}
	return cmp.Or(cmp.Compare(a.Hostname, b.Hostname), cmp.Compare(a.Namespace, b.Namespace)) < 0
}

// table returns the virtual hosts of a RouteConfiguration.
func (b *sidecar) table(routes string, port uint32, of *routing) *portHosts {
	t := b.tables[routes]
	if t == nil {
		t = &portHosts{routing: of, routes: routes, port: port, services: map[string]bool{}, applied: map[ident.Key]bool{}}
		b.tables[routes] = t
	}
	return t
}

func (b *sidecar) virtualHost(s *index.Service, p index.Port, vs *index.VirtualServiceHead) virtualHost {
	h := virtualHost{service: s.ServiceID, host: s.Hostname, port: p.Number}
	h.rule, _ = b.r.Rule(b.class.Scope, s.Namespace, s.Hostname)
	if vs != nil {
		b.route(&h, vs)
	}
	return h
}

func (b *sidecar) addService(s *index.Service, p index.Port, vs *index.VirtualServiceHead, own bool, hosts *portHosts) {
	h := b.virtualHost(s, p, vs)
	h.routes, h.own, h.withPort = hosts.routes, own, hosts.port == 0
	if local := s.In(b.class.Cluster); local != s {
		h.cluster, s = b.class.Cluster, local
	}
	hosts.services[strings.ToLower(s.Hostname)] = true
	if vs != nil {
		hosts.applied[vs.Key] = true
	}
	hosts.candidates = append(hosts.candidates, &candidate{virtualHost: h, service: s})
}

// addSniffed adds the RouteConfiguration of a port that has one of its own (VS-6).
func (b *sidecar) addSniffed(s *index.Service, p index.Port, vs *index.VirtualServiceHead) {
	if name, ok := Sniffed(s.In(b.class.Cluster), p); ok {
		h := b.virtualHost(s, p, vs)
		h.routes, h.alone = name, true
		b.alone = append(b.alone, head{routes: name}, h)
	}
}

// addOthers adds hosts of VirtualServices that are no service of the port: on
// port 80, and where the VirtualService routes a service of the port.
func (b *sidecar) addOthers(hosts *portHosts) {
	for _, vs := range hosts.virtualServices {
		if hosts.port != 80 && !hosts.applied[vs.Key] || hosts.port == 0 {
			continue
		}
		for _, host := range vs.Hosts {
			lower := strings.ToLower(host)
			if hosts.hosts.exact[lower] != vs || hosts.services[lower] || isWildcard(lower) && hosts.any(lower) {
				continue
			}
			h := virtualHost{routes: hosts.routes, host: host, port: hosts.port}
			b.route(&h, vs)
			hosts.candidates = append(hosts.candidates, &candidate{virtualHost: h})
		}
	}
}

// any reports whether a wildcard matches a service of the port.
func (p *portHosts) any(wildcard string) bool {
	for host := range p.services {
		if gateway.Covers(wildcard, host) {
			return true
		}
	}
	return false
}

// route sets the VirtualService of a virtual host.
func (b *sidecar) route(h *virtualHost, vs *index.VirtualServiceHead) {
	h.virtualService = vs.Key
	h.caller = CallerOf(b.r, b.class.Sources, b.class.Scope, vs)
}

// parts returns all parts in order.
func (b *sidecar) parts() []piece.Part {
	all := b.alone
	tables := slices.SortedFunc(maps.Values(b.tables), func(x, y *portHosts) int {
		return cmp.Or(cmp.Compare(x.port, y.port), cmp.Compare(x.routes, y.routes))
	})
	for _, t := range tables {
		all = append(all, head{routes: t.routes, ports: t.port == 0})
		all = b.settle(all, t.candidates)
		all = append(all, catchAll{t.routes, b.class.Outbound})
	}
	if b.r.Mesh().GetProxyHttpPort() > 0 {
		all = append(all, head{routes: ForProxying, ports: true})
		all = b.settle(all, proxied(tables))
		all = append(all, catchAll{ForProxying, b.class.Outbound})
	}
	return all
}

// settle decides which virtual host of a RouteConfiguration has which domain,
// and appends them in order.
func (b *sidecar) settle(all []piece.Part, hosts []*candidate) []piece.Part {
	slices.SortStableFunc(hosts, func(x, y *candidate) int { return cmp.Or(cmp.Compare(x.host, y.host), cmp.Compare(x.port, y.port)) })
	c := claims{
		hosts: hosts, cluster: b.class.Cluster,
		holder: make(map[string]claim, 5*len(hosts)), // most have a host, its absolute form, two short names and an IP
	}
	c.holder["*"] = claim{-1, itself} // catchAll's
	buffer := make([]string, 0, 32)
	for i, h := range hosts {
		buffer = h.domains(buffer[:0], h.service, b.suffix)
		for _, d := range buffer {
			c.add(int32(i), d, h.form(d))
		}
	}
	for _, h := range hosts {
		slices.Sort(h.lost)
		h.without = strings.Join(h.lost, "\n")
		all = append(all, h.virtualHost)
	}
	return all
}

// proxied returns the virtual hosts of all ports, for callers that use the
// sidecar as a proxy (LSN-13).
func proxied(tables []*portHosts) []*candidate {
	var all []*candidate
	for _, t := range tables {
		if t.port == 0 {
			continue // a Unix socket has hosts of its own
		}
		for _, h := range t.candidates {
			again := &candidate{virtualHost: h.virtualHost, service: h.service}
			again.routes, again.withPort, again.without = ForProxying, true, ""
			all = append(all, again)
		}
	}
	return all
}
