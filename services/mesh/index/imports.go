package index

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
)

// imports are the hosts of an egress listener of a Sidecar (SC-2).
type imports struct {
	port    uint32 // services are imported with this port only; 0: with all
	include []importEntry
	exclude []importEntry
}

// importEntry is an entry NAMESPACE/HOST.
type importEntry struct {
	namespace string // "*": any; ".": that of the proxy
	host      string // lower case; may begin with a star
	written   string // host as written
}

// newImports reads the hosts of an egress listener.
func newImports(e *networking.IstioEgressListener) imports {
	i := imports{port: e.GetPort().GetNumber()}
	for _, h := range e.GetHosts() {
		namespace, host, _ := strings.Cut(h, "/")
		entry := importEntry{namespace, strings.ToLower(host), host}
		if of, without := strings.CutPrefix(namespace, exportNone); without {
			if entry.namespace = of; of == "" {
				entry.namespace = exportAll
			}
			i.exclude = append(i.exclude, entry)
		} else {
			i.include = append(i.include, entry)
		}
	}
	return i
}

// everything reports whether all that a proxy sees is imported, with all ports.
func (i *imports) everything() bool {
	return i.port == 0 && len(i.exclude) == 0 && slices.Contains(i.include, importEntry{exportAll, "*", "*"})
}

// of reports whether the entry is about a namespace; home is that of the proxy.
func (e importEntry) of(namespace, home string) bool {
	return e.namespace == exportAll || e.namespace == namespace || e.namespace == exportOwn && namespace == home
}

// in reports whether all hosts of a pattern are hosts of another.
func in(host, pattern string) bool {
	if !isWildcard(pattern) {
		return host == pattern
	}
	return strings.HasSuffix(strings.TrimPrefix(host, "*"), pattern[1:])
}

// hasService reports whether a service of a namespace is imported.
func (i *imports) hasService(namespace, host, home string) bool {
	host = strings.ToLower(host)
	is := func(e importEntry) bool { return e.of(namespace, home) && in(host, e.host) }
	return slices.ContainsFunc(i.include, is) && !slices.ContainsFunc(i.exclude, is)
}

// hasRoutes reports whether a VirtualService of a namespace is imported: for one of its
// hosts, which may be wider than what is imported.
func (i *imports) hasRoutes(v *virtualService, home string) bool {
	namespace := v.Key.Namespace
	return slices.ContainsFunc(v.Hosts, func(host string) bool {
		host = strings.ToLower(host)
		out := func(e importEntry) bool { return e.of(namespace, home) && in(host, e.host) }
		is := func(e importEntry) bool { return e.of(namespace, home) && (in(host, e.host) || in(e.host, host)) }
		return slices.ContainsFunc(i.include, is) && !slices.ContainsFunc(i.exclude, out)
	})
}

// finder finds what the proxies of a namespace import by a Sidecar.
type finder struct {
	r    *Reader
	home string
}

// hosts returns the hosts of which a service may be imported.
func (f finder) hosts(i *imports) map[string]struct{} {
	all := make(map[string]struct{})
	x := &f.r.pc.services
	for _, e := range i.include {
		namespace := e.namespace
		if namespace == exportOwn {
			namespace = f.home
		}
		switch {
		case !isWildcard(e.host):
			all[e.written] = struct{}{}
		case namespace != exportAll:
			f.r.note(Input{Kind: InputServicesOf, A: namespace})
			for _, s := range x.homeOf.Get(namespace) {
				if in(strings.ToLower(s.Hostname), e.host) {
					all[s.Hostname] = struct{}{}
				}
			}
		default:
			f.r.note(Input{Kind: InputServicesOf, A: exportAll})
			for host := range x.views.All() {
				if in(strings.ToLower(host), e.host) {
					all[host] = struct{}{}
				}
			}
		}
	}
	return all
}

// find returns the service of a host that is among some, for the proxy: its namespace's,
// else the first (SC-10, VIS-3); nil: none. What another source has is nobody's to take
// over (AGG-2). An alias stands for the service that it names.
func (f finder) find(host string, among func(*Service) bool) *Service {
	all := f.visible(host)
	var first *Service
	for _, s := range all {
		if s.Key.Source != all[0].Key.Source || !among(s) {
			continue
		}
		if first == nil || s.Namespace == f.home {
			first = s
		}
	}
	if first == nil || first.AliasOf == "" {
		return first
	}
	end := f.visible(f.r.pc.services.aliases.target[host])
	if len(end) == 0 {
		return nil
	}
	target := seenFrom(end, f.home)
	if target.AliasOf != "" {
		return nil
	}
	return target
}

// visible returns the services of a host that the proxy's namespace sees, the one that wins
// first.
func (f finder) visible(host string) (all []*Service) {
	f.r.note(Input{Kind: InputHost, A: host})
	for _, s := range f.r.pc.services.views.Get(host).services {
		if s.ExportTo.Shows(s.Namespace, f.home) {
			all = append(all, s)
		}
	}
	return all
}

// anyService accepts all services.
func anyService(*Service) bool { return true }

// service returns the service of a host that is imported explicitly, with the ports that
// are; nil: none.
func (f finder) service(i *imports, host string) *Service {
	s := f.find(host, func(s *Service) bool {
		_, has := s.Port(i.port)
		return i.hasService(s.Namespace, s.Hostname, f.home) && (i.port == 0 || has || s.AliasOf != "")
	})
	return s.only(i.port)
}

// only returns s with one of its ports, or nil if it has no such port; 0: s.
func (s *Service) only(port uint32) *Service {
	if s == nil || port == 0 {
		return s
	}
	p, has := s.Port(port)
	if !has {
		return nil
	}
	some := *s
	some.Ports, some.Partial = []Port{p}, true
	return &some
}

// services returns the services that are imported explicitly, sorted by host.
func (f finder) services(i *imports) []*Service {
	var all []*Service
	seen := make(map[ServiceID]bool)
	for host := range f.hosts(i) {
		if s := f.service(i, host); s != nil && !seen[s.ServiceID] {
			seen[s.ServiceID] = true
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *Service) int { return strings.Compare(a.Hostname, b.Hostname) })
	return all
}

// routes returns the VirtualServices of sidecars that are imported, the oldest first.
func (f finder) routes(i *imports) []*VirtualServiceHead {
	x := &f.r.pc.virtualServices
	seen := make(map[*VirtualServiceHead]bool)
	var all []*VirtualServiceHead
	add := func(v *virtualService) {
		if !seen[v.VirtualServiceHead] && v.exportTo.Shows(v.Key.Namespace, f.home) && i.hasRoutes(v, f.home) {
			seen[v.VirtualServiceHead] = true
			all = append(all, v.VirtualServiceHead)
		}
	}
	for _, e := range i.include {
		namespace := e.namespace
		if namespace == exportOwn {
			namespace = f.home
		}
		f.r.note(Input{Kind: InputVirtualServicesOf, A: namespace})
		if namespace != exportAll {
			for _, v := range x.homeOf.Get(namespace) {
				add(v)
			}
			continue
		}
		for _, list := range x.homeOf.All() {
			for _, v := range list {
				add(v)
			}
		}
	}
	slices.SortFunc(all, f.r.pc.settings.compareHeads)
	return all
}

// inferred returns the services that VirtualServices name as destinations, also through
// their delegates (SC-4). For a listener with a port they have the port that the destination
// means there, and no other.
func (f finder) inferred(heads []*VirtualServiceHead, port uint32) []*Service {
	var all []*Service
	add := func(host string, only uint32) {
		if s := f.find(host, anyService).only(only); s != nil {
			all = append(all, s)
		}
	}
	for _, h := range heads {
		if port == 0 && !h.Delegates {
			for _, host := range h.Destinations {
				add(host, 0)
			}
			continue
		}
		for _, d := range f.destinations(h) {
			only := port
			if n := d.GetPort().GetNumber(); port != 0 && n != 0 {
				only = n
			} else if s := f.find(d.GetHost(), anyService); port != 0 && s != nil && len(s.Ports) == 1 {
				only = s.Ports[0].Number
			}
			add(d.GetHost(), only)
		}
	}
	return all
}

// destinations returns the destinations that a VirtualService and its delegates name.
func (f finder) destinations(h *VirtualServiceHead) []*networking.Destination {
	all := destinations(f.r.VirtualService(h.Key))
	for _, r := range f.r.VirtualService(h.Key).GetHttp() {
		d := r.GetDelegate()
		if d == nil {
			continue
		}
		k := h.Key
		if k.Name = d.GetName(); d.GetNamespace() != "" {
			k.Namespace = d.GetNamespace()
		}
		all = append(all, destinations(f.r.VirtualService(k))...)
	}
	return all
}

// Egress is an egress listener of a Sidecar with what it imports (SC-3). Without a Sidecar
// there is one, with all that proxies see. The zero value listens where services are called.
type Egress struct {
	Key             ident.Key // of the Sidecar; zero: there is none
	Field           string    // of the listener in it
	Port            uint32    // 0: the ports of the services, or a Unix socket
	Protocol        Protocol  // of Port, and of a Unix socket
	Bind            string    // an IP or unix://PATH; empty: where the services are called
	Capture         networking.CaptureMode
	Services        []*Service            // sorted by host; those that VirtualServices need are not among them
	VirtualServices []*VirtualServiceHead // of sidecars, the oldest first
}

func newEgress(e *networking.IstioEgressListener) Egress {
	bind := e.GetBind()
	if ip, err := netip.ParseAddr(bind); err == nil {
		bind = ip.String() // as listeners have the addresses of services
	}
	return Egress{
		Port: e.GetPort().GetNumber(), Protocol: protocols[strings.ToLower(e.GetPort().GetProtocol())],
		Bind: bind, Capture: e.GetCaptureMode(),
	}
}

// Socket reports whether it listens on a Unix socket.
func (e *Egress) Socket() bool { return strings.HasPrefix(e.Bind, "unix://") }

// Plain reports whether it listens where services are called.
func (e *Egress) Plain() bool { return e.Port == 0 && !e.Socket() }

// imported is what the proxies of a namespace import by a Sidecar.
type imported struct {
	egress   []Egress
	services []*Service // of all listeners, and those that VirtualServices need, sorted by host
	inputs   []Input    // that it was found from, without the view
}

// imported returns what a scope imports. It is found once for each Sidecar and namespace,
// when something first needs it (SC-9).
func (r *Reader) imported(text string) *imported {
	memo := &r.pc.imported
	if found, ok := memo.Load(text); ok {
		i := found.(*imported)
		for _, in := range i.inputs {
			r.note(in)
		}
		return i
	}
	fresh := r.pc.Read()
	s, home := fresh.sidecar(text)
	i := findImported(finder{fresh, home}, s)
	i.inputs = fresh.Inputs()
	memo.Store(text, i)
	return r.imported(text)
}

func findImported(f finder, s *Sidecar) *imported {
	out := &imported{}
	if s == nil {
		return out // its proxies are in another class
	}
	all := make(map[string]*Service)
	for i := range s.imports {
		list := &s.imports[i]
		e := newEgress(s.Spec.GetEgress()[i])
		e.Key, e.Field = s.Key, fmt.Sprintf("spec.egress[%d]", i)
		e.Services, e.VirtualServices = f.services(list), f.routes(list)
		out.egress = append(out.egress, e)
		for _, s := range append(slices.Clone(e.Services), f.inferred(e.VirtualServices, list.port)...) {
			all[s.Hostname] = all[s.Hostname].with(s)
		}
	}
	for _, s := range all {
		out.services = append(out.services, s)
	}
	slices.SortFunc(out.services, func(a, b *Service) int { return strings.Compare(a.Hostname, b.Hostname) })
	return out
}

// with returns s with the ports of o too, if both are of one namespace; else the first of
// them, which is s unless it is nil.
func (s *Service) with(o *Service) *Service {
	switch {
	case s == nil:
		return o
	case s.ServiceID != o.ServiceID || !s.Partial:
		return s
	case !o.Partial:
		return o
	}
	both := *s
	both.Ports = slices.Clone(s.Ports)
	for _, p := range o.Ports {
		if _, has := s.Port(p.Number); !has {
			both.Ports = append(both.Ports, p)
		}
	}
	slices.SortFunc(both.Ports, func(a, b Port) int { return int(a.Number) - int(b.Number) })
	return &both
}

// Egress returns the egress listeners of a scope, with what they import (SC-2).
func (r *Reader) Egress(s Scope) []Egress {
	if s.Imports == "" {
		return []Egress{{Services: r.Services(s), VirtualServices: r.VirtualServices(s, MeshGateway)}}
	}
	return r.imported(s.Imports).egress
}

// Destination returns the service that a destination of a VirtualService means which the
// scope imports: that of the host which the Sidecar imports, else the one that is imported
// because of the destination (SC-4); nil: the scope sees none.
func (r *Reader) Destination(s Scope, host string) *Service {
	if s.Imports == "" {
		// As ServiceByHost, which would depend on all services.
		r.note(Input{Kind: InputHost, A: host})
		if target := r.pc.services.aliases.target[host]; target != "" {
			r.note(Input{Kind: InputHost, A: target})
		}
		return r.pc.services.find(s.Services, host)
	}
	sidecar, home := r.sidecar(s.Imports)
	if sidecar == nil {
		return nil
	}
	f := finder{r, home}
	for i := range sidecar.imports {
		if s := f.service(&sidecar.imports[i], host); s != nil {
			return r.Service(s.ServiceID)
		}
	}
	return f.find(host, anyService)
}

// importedService returns the service of a host that a scope imports, or nil.
func (r *Reader) importedService(text, host string) *Service {
	f := finder{r, ""}
	all := r.imported(text).services
	if i, has := slices.BinarySearchFunc(all, host, func(s *Service, host string) int { return strings.Compare(s.Hostname, host) }); has {
		return r.Service(all[i].ServiceID)
	}
	f.r.note(Input{Kind: InputHost, A: host})
	if target := r.pc.services.aliases.target[host]; target != "" && target != host {
		f.r.note(Input{Kind: InputHost, A: target})
		return r.importedService(text, target)
	}
	return nil
}

// OwnPorts returns the ports for which listeners of their own are among some.
func OwnPorts(all []Egress) map[uint32]bool {
	var ports map[uint32]bool
	for i := range all {
		if all[i].Port != 0 {
			if ports == nil {
				ports = make(map[uint32]bool)
			}
			ports[all[i].Port] = true
		}
	}
	return ports
}
