package index

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"meshlog.dev/services/mesh/proxy"
)

// Inbound describes the ports on which the workload of a sidecar is called: what serves
// them, and their modes of mutual TLS. Workloads that are called alike have equal texts,
// whatever their addresses and labels are. The zero value is a workload that no service
// names and that takes everything.
type Inbound string

// InboundPort is a port of a workload.
type InboundPort struct {
	Port     uint32 // on which the workload is called
	Protocol Protocol
	Mode     PeerMode
	// Service names the port, as its port ServicePort; zero: only a PeerAuthentication
	// names it.
	Service     ServiceID
	ServicePort uint32
}

// Default returns the mode of ports that are not among Ports.
func (i Inbound) Default() PeerMode {
	first, _, _ := strings.Cut(string(i), "\n")
	for _, m := range []PeerMode{PeerStrict, PeerDisable} {
		if first == m.String() {
			return m
		}
	}
	return PeerPermissive
}

// Ports returns the ports, sorted. Several services may name one port: the first one
// decides.
func (i Inbound) Ports() []InboundPort {
	var all []InboundPort
	_, rest, _ := strings.Cut(string(i), "\n")
	for line := range strings.Lines(rest) {
		var p InboundPort
		if _, err := fmt.Sscan(line, &p.Port, &p.Protocol, &p.Mode, &p.ServicePort, &p.Service.Namespace, &p.Service.Hostname); err != nil && p.Port == 0 {
			panic(fmt.Sprintf("line %q of the ports is not as newInbound writes it: %v", line, err))
		}
		all = append(all, p)
	}
	return all
}

// newInbound writes the ports, which are sorted.
func newInbound(mode PeerMode, ports []InboundPort) Inbound {
	if mode == PeerPermissive && len(ports) == 0 {
		return ""
	}
	lines := []string{mode.String()}
	for _, p := range ports {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%d %d %d %d %s %s", p.Port, p.Protocol, p.Mode, p.ServicePort, p.Service.Namespace, p.Service.Hostname)))
	}
	return Inbound(strings.Join(lines, "\n"))
}

// InboundClusters describes the clusters by which a sidecar calls its own workload.
type InboundClusters string

// InboundCluster is the cluster of a port of the workload.
type InboundCluster struct {
	Port     uint32
	Protocol Protocol // HTTP, HTTP2, TCP, or Sniffed: as the caller
}

// onLoopback begins the text of the clusters of a sidecar that connections are not
// redirected to: its workload listens on loopback.
const onLoopback = "loopback"

// Clusters returns the clusters for the ports. Bind: nothing redirects connections.
func (i Inbound) Clusters(bind bool) InboundClusters {
	var lines []string
	if bind {
		lines = append(lines, onLoopback)
	}
	last := uint32(0)
	for _, p := range i.Ports() {
		if p.Port == last || p.Service == (ServiceID{}) && bind {
			continue
		}
		last = p.Port
		protocol := TCP
		switch {
		case p.Protocol.IsHTTP2():
			protocol = HTTP2
		case p.Protocol.IsHTTP(), p.Protocol == Sniffed:
			protocol = p.Protocol
		}
		lines = append(lines, fmt.Sprintf("%d %d", p.Port, protocol))
	}
	if bind && len(lines) == 1 {
		return ""
	}
	return InboundClusters(strings.Join(lines, "\n"))
}

// OnLoopback reports whether the workload listens on loopback, and not where it is
// called.
func (c InboundClusters) OnLoopback() bool { return strings.HasPrefix(string(c), onLoopback) }

// All returns the clusters.
func (c InboundClusters) All() []InboundCluster {
	var all []InboundCluster
	for line := range strings.SplitSeq(strings.TrimPrefix(string(c), onLoopback), "\n") {
		port, protocol, ok := strings.Cut(line, " ")
		if !ok {
			continue
		}
		number, err := strconv.ParseUint(port, 10, 32)
		if err != nil {
			panic(fmt.Sprintf("line %q of the clusters is not as Clusters writes it: %v", line, err))
		}
		kind, err := strconv.ParseUint(protocol, 10, 8)
		if err != nil {
			panic(fmt.Sprintf("line %q of the clusters is not as Clusters writes it: %v", line, err))
		}
		all = append(all, InboundCluster{uint32(number), Protocol(kind)})
	}
	return all
}

// inboundOf returns the ports of a proxy's workload: those of the services of its
// namespace that select its labels or have its address as an endpoint. Services of other
// namespaces do not count, so that none of them decides how it is protected.
func (pc *PushContext) inboundOf(p *proxy.Proxy) Inbound {
	modes := pc.peers.modes(pc.settings.rootNamespace, p.Namespace, p.Labels)
	f := targetFinder{pc: pc, proxy: p}
	f.byLabels()
	f.byAddress()
	slices.SortFunc(f.found, func(a, b target) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), pc.settings.compareServices(a.of, b.of), cmp.Compare(a.ServicePort, b.ServicePort))
	})
	var ports []InboundPort
	if s := pc.sidecars.of(pc.settings.rootNamespace, p.Namespace, p.Labels); s != nil && !p.GRPC && len(s.Spec.GetIngress()) > 0 {
		ports, f.found = s.ingressPorts(f.found, modes), nil
	}
	for _, t := range f.found {
		t.Mode = modes.Of(t.Port)
		if alike := func(o InboundPort) bool { return o.Port == t.Port && o.Protocol == t.Protocol }; !slices.ContainsFunc(ports, alike) {
			ports = append(ports, t.InboundPort)
		}
	}
	for port, mode := range modes.Ports {
		if known := func(o InboundPort) bool { return o.Port == port }; mode != modes.Default && !slices.ContainsFunc(ports, known) {
			ports = append(ports, InboundPort{Port: port, Mode: mode})
		}
	}
	slices.SortStableFunc(ports, func(a, b InboundPort) int { return cmp.Compare(a.Port, b.Port) })
	return newInbound(modes.Default, ports)
}

// setInbound sets what is about the sidecar's own workload.
func (c *ProxyClass) setInbound(pc *PushContext, p *proxy.Proxy) {
	c.LDS.Certificates = p.Certificates()
	c.LDS.Transparent = p.Text("INTERCEPTION_MODE") == "TPROXY"
	inbound := pc.inboundOf(p)
	c.CDS.Inbound = inbound.Clusters(c.LDS.Bind)
	c.setIngress(pc, p)
	if c.LDS.Inbound = inbound; !c.LDS.Bind {
		return
	}
	// Without redirection there are listeners only for ports of services, each at the
	// address at which it is called: the workload has the port on loopback.
	if c.CDS.Inbound == "" {
		c.LDS.Inbound, c.LDS.Certificates, c.LDS.Ingress, c.CDS.Ingress = "", proxy.Certificates{}, "", ""
		return
	}
	if ips := pc.addressesOf(p); len(ips) > 0 {
		c.LDS.Address = ips[0]
	}
}

// setServer sets what is about the workload of a gRPC client, if that is a server: a service
// names its ports (MTLS-17).
func (c *ProxyClass) setServer(pc *PushContext, p *proxy.Proxy) {
	inbound := pc.inboundOf(p)
	if !slices.ContainsFunc(inbound.Ports(), func(p InboundPort) bool { return p.Service != (ServiceID{}) }) {
		return
	}
	c.LDS.Inbound, c.LDS.Certificates = inbound, p.Certificates()
	if ips := pc.addressesOf(p); len(ips) > 0 {
		c.LDS.Address = ips[0]
	}
	c.LDS.Policies, _ = pc.policies.selected(pc.settings, p)
}

// anyServer sets the workload of a gRPC server that has ports of all modes.
func (c *ProxyClass) anyServer() {
	var ports []InboundPort
	for _, mode := range []PeerMode{PeerPermissive, PeerStrict, PeerDisable} {
		ports = append(ports, InboundPort{Port: 8001 + uint32(len(ports)), Protocol: HTTP2, Mode: mode, Service: ServiceID{"any", "any"}, ServicePort: 80})
	}
	c.LDS.Inbound, c.LDS.Certificates = newInbound(PeerPermissive, ports), proxy.Certificates{Provider: "default"}
}

// anyInbound sets a workload that has ports of all protocols and modes, for which a version
// must be generated before it is published.
func (c *ProxyClass) anyInbound() {
	var ports []InboundPort
	for _, mode := range []PeerMode{PeerPermissive, PeerStrict, PeerDisable} {
		for _, protocol := range []Protocol{Sniffed, HTTP, HTTP2, TCP} {
			ports = append(ports, InboundPort{Port: 8001 + uint32(len(ports)), Protocol: protocol, Mode: mode, Service: ServiceID{"any", "any"}, ServicePort: 80})
		}
	}
	c.LDS.Inbound, c.LDS.Certificates = newInbound(PeerPermissive, ports), proxy.Certificates{Agent: true}
	c.CDS.Inbound = c.LDS.Inbound.Clusters(false)
}

// target is a port of a workload, found through a service.
type target struct {
	InboundPort
	of *Service
}

// targetFinder finds the services whose endpoint a proxy's workload is.
type targetFinder struct {
	pc    *PushContext
	proxy *proxy.Proxy
	found []target
}

func (f *targetFinder) add(s *Service, p Port, number uint32) {
	if number != 0 && number <= 65535 {
		f.found = append(f.found, target{InboundPort{Port: number, Protocol: p.Protocol, Service: s.ServiceID, ServicePort: p.Number}, s})
	}
}

// byLabels finds the services that select the proxy's labels.
func (f *targetFinder) byLabels() {
	x, p := &f.pc.endpoints, f.proxy
	look := func(pair labelPair) {
		for _, s := range x.byPair.Get(pair) {
			if matchLabels(s.selector, p.Labels) && f.pc.reaches(s, p) {
				for _, id := range s.ids {
					f.selected(s, id)
				}
			}
		}
	}
	look(labelPair{namespace: p.Namespace})
	for name, value := range p.Labels {
		look(labelPair{p.Namespace, name, value})
	}
}

// reaches reports whether a selector may mean workloads in the proxy's cluster.
func (pc *PushContext) reaches(s *selecting, p *proxy.Proxy) bool {
	return s.Source != kubernetesSource || pc.clusterOf(p) == "" || s.Instance == p.ClusterID
}

// selected adds the ports of a service whose object selects the workload.
func (f *targetFinder) selected(by *selecting, id ServiceID) {
	s := f.pc.services.byID.Get(id)
	if s == nil || s.AliasOf != "" {
		return
	}
	for _, c := range f.pc.services.claims.Get(id) {
		if c.service.Key != by.Key {
			continue
		}
		for _, p := range c.service.Ports {
			if port, ok := s.Port(p.Number); ok {
				f.add(s, port, f.number(c, p))
			}
		}
	}
}

// number returns the port of the workload that serves a service's port; 0: it has none
// of the name.
func (f *targetFinder) number(c *claim, p Port) uint32 {
	w := f.pc.workloadAt(f.proxy)
	if w != nil && w.entry != nil {
		if own := w.entry.GetPorts()[p.Name]; own != 0 {
			return own
		}
	}
	if name := c.targetName(p); name != "" {
		switch {
		case w == nil:
			return 0
		case w.entry != nil:
			return w.entry.GetPorts()[name]
		}
		return w.pod.GetPorts()[name]
	}
	return cmp.Or(p.Target, p.Number)
}

// targetName returns the name of the workload's port that a Service names as the target
// of one of its ports; empty: it names none.
func (c *claim) targetName(p Port) string {
	for _, rp := range c.registry.GetPorts() {
		if rp.GetNumber() == p.Number {
			return rp.GetTargetPortName()
		}
	}
	return ""
}

// byAddress finds the services that have the proxy's address as an endpoint and do not
// select workloads.
func (f *targetFinder) byAddress() {
	x := &f.pc.endpoints
	for _, ip := range f.pc.addressesOf(f.proxy) {
		for _, a := range x.addressed.Get(addressIn{f.proxy.Namespace, ip}) {
			s := f.pc.services.byID.Get(a.id)
			if s == nil {
				continue
			}
			for _, p := range s.Ports {
				for _, e := range x.byID.Get(a.id)[p.Number] {
					if e.Address == ip {
						f.add(s, p, e.Port)
					}
				}
			}
		}
	}
}

// addressesOf returns the addresses at which the proxy's workload is called, as it says
// itself.
func (pc *PushContext) addressesOf(p *proxy.Proxy) []string {
	var all []string
	for _, ip := range p.Addresses() {
		if !slices.Contains(all, ip.String()) {
			all = append(all, ip.String())
		}
	}
	return all
}

// workloadAt returns the Pod or WorkloadEntry with the proxy's address; nil: there is
// none.
func (pc *PushContext) workloadAt(p *proxy.Proxy) *workload {
	ips := pc.addressesOf(p)
	for _, w := range pc.endpoints.workloads.Get(p.Namespace) {
		if slices.ContainsFunc(w.addresses(), func(a string) bool { return slices.Contains(ips, a) }) && pc.inClusterOf(w, p) {
			return w
		}
	}
	return nil
}

// inClusterOf reports whether a workload may be in the proxy's cluster: clusters may use
// the same addresses.
func (pc *PushContext) inClusterOf(w *workload, p *proxy.Proxy) bool {
	return w.Source != kubernetesSource || pc.clusterOf(p) == "" || w.Instance == p.ClusterID
}

// TargetInputs returns the inputs that decide which ports a proxy's workload has:
// Classify may return another class if one of them has changed.
func TargetInputs(p *proxy.Proxy) []Input {
	all := []Input{{Kind: InputTargets, A: p.Namespace}}
	for _, ip := range p.Addresses() {
		all = append(all, Input{Kind: InputTargets, A: p.Namespace, B: ip.String()})
	}
	return all
}

// labelPair is a label of workloads of a namespace. A selector is found by the first
// label that it demands; one without labels by the zero label.
type labelPair struct{ namespace, name, value string }

// pair returns the label by which the selector is found.
func (s *selecting) pair() labelPair {
	first := labelPair{namespace: s.Namespace}
	for name, value := range s.selector {
		if first.name == "" || name < first.name {
			first.name, first.value = name, value
		}
	}
	return first
}

// addressIn is an IP that services of a namespace have as an endpoint.
type addressIn struct{ namespace, ip string }

// portsAt returns, for each IP among endpoints, a number that differs if its ports do.
func portsAt(all Endpoints) map[string]uint64 {
	at := make(map[string]uint64)
	for port, list := range all {
		for i := range list {
			if _, err := netip.ParseAddr(list[i].Address); err == nil {
				at[list[i].Address] += (uint64(port)<<32 | uint64(list[i].Port)) * 0x9e3779b97f4a7c15
			}
		}
	}
	return at
}
