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
	b := newSidecar(r, class)
	for _, s := range r.Services(class.Scope) {
		vs := b.hosts.Of(s.Hostname)
		own := class.Namespace != "" && class.Namespace == hostname.Home(s.Hostname, r.DomainSuffix())
		for _, p := range s.Ports {
			if piece.TakesRequests(p.Protocol) {
				b.addService(s, p, vs, own)
			}
		}
	}
	for port, hosts := range b.ports {
		b.addOthers(port, hosts)
	}
	return b.parts()
}

// sidecar collects the virtual hosts of a class of sidecars.
type sidecar struct {
	r      *index.Reader
	class  index.RDSClass
	suffix string

	virtualServices []*index.VirtualServiceHead
	hosts           *HostIndex
	ports           map[uint32]*portHosts
	alone           []piece.Part // of services with a RouteConfiguration of their own
}

func newSidecar(r *index.Reader, class index.RDSClass) *sidecar {
	all := slices.Clone(r.VirtualServices(class.Scope, Mesh))
	heads := slices.DeleteFunc(all, func(vs *index.VirtualServiceHead) bool { return !vs.HTTP })
	return &sidecar{
		r: r, class: class, suffix: hostname.Suffix(r.DomainSuffix()),
		virtualServices: heads, hosts: NewHostIndex(heads), ports: map[uint32]*portHosts{},
	}
}

// portHosts are the virtual hosts of a port.
type portHosts struct {
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

func (b *sidecar) addService(s *index.Service, p index.Port, vs *index.VirtualServiceHead, own bool) {
	h := virtualHost{routes: ForPort(p.Number), service: s.ServiceID, host: s.Hostname, port: p.Number, own: own}
	h.rule, _ = b.r.Rule(b.class.Scope, s.Namespace, s.Hostname)
	if local := s.In(b.class.Cluster); local != s {
		h.cluster, s = b.class.Cluster, local
	}
	if vs != nil {
		b.route(&h, vs)
	}
	hosts := b.ports[p.Number]
	if hosts == nil {
		hosts = &portHosts{services: map[string]bool{}, applied: map[ident.Key]bool{}}
		b.ports[p.Number] = hosts
	}
	hosts.services[strings.ToLower(s.Hostname)] = true
	if vs != nil {
		hosts.applied[vs.Key] = true
	}
	hosts.candidates = append(hosts.candidates, &candidate{virtualHost: h, service: s})
	if name, ok := Sniffed(s, p); ok {
		h.routes, h.alone, h.own, h.cluster = name, true, false, ""
		b.alone = append(b.alone, head{routes: name}, h)
	}
}

// addOthers adds hosts of VirtualServices that are no service of the port: on
// port 80, and where the VirtualService routes a service of the port.
func (b *sidecar) addOthers(port uint32, hosts *portHosts) {
	for _, vs := range b.virtualServices {
		if port != 80 && !hosts.applied[vs.Key] {
			continue
		}
		for _, host := range vs.Hosts {
			lower := strings.ToLower(host)
			if b.hosts.exact[lower] != vs || hosts.services[lower] || isWildcard(lower) && hosts.any(lower) {
				continue
			}
			h := virtualHost{routes: ForPort(port), host: host, port: port}
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
	ports := slices.Sorted(maps.Keys(b.ports))
	for _, port := range ports {
		all = append(all, head{routes: ForPort(port)})
		all = b.settle(all, b.ports[port].candidates)
		all = append(all, catchAll{ForPort(port)})
	}
	if b.r.Mesh().GetProxyHttpPort() > 0 {
		all = append(all, head{routes: ForProxying, ports: true})
		all = b.settle(all, b.proxied(ports))
		all = append(all, catchAll{ForProxying})
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
func (b *sidecar) proxied(ports []uint32) []*candidate {
	var all []*candidate
	for _, port := range ports {
		for _, h := range b.ports[port].candidates {
			again := &candidate{virtualHost: h.virtualHost, service: h.service}
			again.routes, again.withPort, again.without = ForProxying, true, ""
			all = append(all, again)
		}
	}
	return all
}
