package index

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/proxy"
)

// Ingress is what a Sidecar says about a port of the workload (SC-5, SC-6). The zero value
// says nothing.
type Ingress struct {
	Key   ident.Key // of the Sidecar
	Field string    // of the listener in it; empty: it has none for the port
	// Bind is the address that callers use, empty: any. Binds: the listener binds the port,
	// because nothing redirects connections to it.
	Bind  string
	Binds bool
	// Endpoint is where the workload listens: an address and port, or a Unix socket. Empty:
	// where it is called.
	Endpoint string
	TLS      *networking.ServerTLSSettings
	Pool     *networking.ConnectionPoolSettings
}

// Ingress returns what the Sidecar of a class, LDSClass.Ingress, says about a port.
func (r *Reader) Ingress(text string, port uint32) Ingress {
	if text == "" {
		return Ingress{}
	}
	s, _ := r.sidecar(text)
	if s == nil {
		return Ingress{}
	}
	in := Ingress{Key: s.Key, Pool: s.Spec.GetInboundConnectionPool()}
	for i, l := range s.Spec.GetIngress() {
		if l.GetPort().GetNumber() != port {
			continue
		}
		in.Field, in.Endpoint, in.TLS = fmt.Sprintf("spec.ingress[%d]", i), l.GetDefaultEndpoint(), l.GetTls()
		in.Binds = l.GetCaptureMode() == networking.CaptureMode_NONE
		if ip, err := netip.ParseAddr(l.GetBind()); err == nil && !ip.IsUnspecified() {
			in.Bind = ip.String()
		}
		if l.GetConnectionPool() != nil {
			in.Pool = l.GetConnectionPool()
		}
	}
	return in
}

// OfInstance reports whether the workload listens at its own address, on that port.
func (in *Ingress) OfInstance() (port uint16, is bool) {
	at, err := netip.ParseAddrPort(in.Endpoint)
	return at.Port(), err == nil && at.Addr().IsUnspecified()
}

// IngressTLS returns the listeners of a Sidecar that end TLS.
func (r *Reader) IngressTLS(text string) (all []Ingress) {
	s, _ := r.sidecar(text)
	if s == nil {
		return nil
	}
	for _, l := range s.Spec.GetIngress() {
		if in := r.Ingress(text, l.GetPort().GetNumber()); in.TLS != nil {
			all = append(all, in)
		}
	}
	return all
}

// ingressTraits returns a text that differs if the ingress of a Sidecar gives workloads another
// class.
func ingressTraits(m *networking.Sidecar) string {
	var lines []string
	for _, l := range m.GetIngress() {
		instance := strings.HasPrefix(l.GetDefaultEndpoint(), "0.0.0.0:") || strings.HasPrefix(l.GetDefaultEndpoint(), "[::]:")
		lines = append(lines, fmt.Sprintf("%d %s %v %v %v", l.GetPort().GetNumber(), l.GetPort().GetProtocol(), l.GetCaptureMode(), instance, l.GetTls() != nil))
	}
	if m.GetInboundConnectionPool() != nil {
		lines = append(lines, "pool")
	}
	return strings.Join(lines, "\n")
}

// ingressPorts returns the ports of a workload that the ingress of its Sidecar names, in
// place of those that services name. A service that has the port names it, for people.
func (s *Sidecar) ingressPorts(found []target, modes PeerModes) []InboundPort {
	var ports []InboundPort
	for _, l := range s.Spec.GetIngress() {
		number := l.GetPort().GetNumber()
		p := InboundPort{
			Port: number, Protocol: protocols[strings.ToLower(l.GetPort().GetProtocol())], Mode: modes.Of(number),
			Service: ServiceID{s.Key.Namespace, "Sidecar/" + s.Key.Name}, ServicePort: number,
		}
		if i := slices.IndexFunc(found, func(t target) bool { return t.Port == number }); i >= 0 {
			p.Service, p.ServicePort = found[i].Service, found[i].ServicePort
		}
		ports = append(ports, p)
	}
	return ports
}

// setIngress sets what the Sidecar of a proxy says about its own workload.
func (c *ProxyClass) setIngress(pc *PushContext, p *proxy.Proxy) {
	s := pc.sidecars.of(pc.settings.rootNamespace, p.Namespace, p.Labels)
	if s == nil || s.ingress == "" {
		return
	}
	c.takeIngress(s)
	if ips := pc.addressesOf(p); len(ips) > 0 && s.atInstance(c.LDS.Bind) {
		c.CDS.Address = ips[0]
	}
}

func (c *ProxyClass) takeIngress(s *Sidecar) {
	c.CDS.Ingress, c.LDS.Ingress = s.text(""), s.text("")
}

// atInstance reports whether a cluster of the workload has the workload's own address. With
// redirection it is the one that the caller chose.
func (s *Sidecar) atInstance(bind bool) bool {
	return slices.ContainsFunc(s.Spec.GetIngress(), func(l *networking.IstioIngressListener) bool {
		in := Ingress{Endpoint: l.GetDefaultEndpoint()}
		_, instance := in.OfInstance()
		return instance && (bind || l.GetCaptureMode() == networking.CaptureMode_NONE)
	})
}

// endsTLS reports whether an ingress listener has TLS settings.
func (s *Sidecar) endsTLS() bool {
	return slices.ContainsFunc(s.Spec.GetIngress(), func(l *networking.IstioIngressListener) bool { return l.GetTls() != nil })
}
