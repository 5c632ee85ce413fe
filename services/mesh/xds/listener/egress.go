package listener

import (
	"fmt"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/route"
)

// spot is where an egress listener of a Sidecar listens (SC-3). Without a Sidecar there is
// one for all services.
type spot struct {
	shared string // the address of listeners that services share
	bind   bool   // listeners bind their ports
	fixed  bool   // services are not called at their own addresses, but at shared
	own    bool   // the listener has a port, or a socket, of its own
	// ports are those of listeners of their own: no other services are called there.
	ports   map[uint32]bool
	routing *route.HostIndex // VirtualServices with TCP routes
}

// taken reports whether a listener of its own has the shared address and the port.
func (o *outbound) taken(port uint32) bool {
	e := o.entries[place{o.shared, port}]
	return !o.own && (o.ports[port] && !o.fixed || e != nil && e.own)
}

// listen adds the services of all egress listeners, of those with a port first.
func (o *outbound) listen(all []index.Egress) {
	ports := index.OwnPorts(all)
	for _, plain := range []bool{false, true} {
		for i := range all {
			e := &all[i]
			if e.Plain() != plain || o.reserved(e) {
				continue
			}
			o.spot = o.spotOf(e, ports)
			for _, s := range e.Services {
				s = s.In(o.class.Cluster)
				for _, p := range s.Ports {
					o.place(e, s, p)
				}
			}
		}
	}
}

// reserved reports whether the port of an egress listener is the sidecar's own.
func (o *outbound) reserved(e *index.Egress) bool {
	if e.Port == 0 || !isOwn(o.r, o.class, e.Port) && e.Port != uint32(o.r.Mesh().GetProxyHttpPort()) {
		return false
	}
	o.report(e.Key, e.Field+".port.number", fmt.Sprintf("sidecars use port %d themselves", e.Port), "use another port", "sidecars do not have the listener")
	return true
}

func (o *outbound) spotOf(e *index.Egress, ports map[uint32]bool) spot {
	heads := slices.DeleteFunc(slices.Clone(e.VirtualServices), func(vs *index.VirtualServiceHead) bool { return !vs.TCP })
	at := spot{shared: anyAddress, own: !e.Plain(), ports: ports, routing: route.NewHostIndex(heads)}
	at.bind = e.Socket() || e.Capture == networking.CaptureMode_NONE || o.class.Bind && e.Capture == networking.CaptureMode_DEFAULT
	at.fixed = at.bind || e.Bind != ""
	switch {
	case e.Bind != "":
		at.shared = e.Bind
	case at.bind:
		at.shared = loopback
	}
	return at
}

// place puts a service's port on an egress listener: on its own port, with that port's
// protocol, or where the service is called.
func (o *outbound) place(e *index.Egress, s *index.Service, p index.Port) {
	switch {
	case e.Plain():
		o.add(s, p)
	case e.Protocol.IsHTTP():
		u := &user{s, index.Port{Number: p.Number, Protocol: e.Protocol}, o.routing}
		routes := e.Bind
		if !e.Socket() {
			routes = route.ForPort(e.Port)
		}
		o.entry(o.shared, e.Port, s).addRequests(u, routes)
	case e.Socket():
		o.socket(s, p, e.Protocol)
	default:
		p.Protocol = e.Protocol
		o.add(s, p)
	}
}

// socket puts a service's port on a listener of a Unix socket for connections: only the
// names that TLS clients ask for tell services apart there.
func (o *outbound) socket(s *index.Service, p index.Port, protocol index.Protocol) {
	p.Protocol = protocol
	u := &user{s, p, o.routing}
	e := o.entry(o.shared, 0, s)
	if name := serverName(u); name != "" && matchable(name) {
		c := condition{serverName: name}
		e.some[c] = o.settle(e.some[c], u)
		return
	}
	e.all = o.settle(e.all, u)
}

// unreachable reports an egress proxy that the Sidecar does not import: calls to unknown
// hosts get no further (SC-7).
func (o *outbound) unreachable() {
	to := o.r.Outbound(o.class.Outbound)
	if to.Proxy == nil {
		return
	}
	s := o.r.ServiceByHost(o.class.Scope, to.Proxy.GetHost())
	reason := fmt.Sprintf("the Sidecar does not import a service %q", to.Proxy.GetHost())
	if s != nil {
		if _, has := s.Port(to.Proxy.GetPort().GetNumber()); has {
			return
		}
		reason = fmt.Sprintf("the service %q has no port %d", s.Hostname, to.Proxy.GetPort().GetNumber())
	}
	o.problems = append(o.problems, piece.Problem{
		Severity: problem.Warning, Code: "route", Key: to.Key, Field: "spec.outboundTrafficPolicy.egressProxy", Reason: reason,
		Advice: "add the host to egress.hosts, or correct it", Effect: "requests to unknown hosts are answered with 503, and connections are closed",
	})
}
