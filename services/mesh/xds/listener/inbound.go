package listener

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	httpinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/http_inspector/v3"
	originaldstv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	originalsrcv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_src/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/policy"
)

const (
	virtualInbound = "virtualInbound"
	inboundPort    = 15006
)

// adminPorts are the ports of Envoy's administration, of an agent's metrics and probes of
// the workload, of its readiness, and of Envoy's metrics. No workload has them, and the
// first is open on loopback only.
var adminPorts = []uint32{15000, 15020, 15021, 15090}

// detectionTimeout is how long a listener waits for the first bytes of a connection whose
// protocol it detects, if MeshConfig says nothing. A server that speaks first is heard
// after it (MTLS-9); with Istio's default, 0, never.
const detectionTimeout = 5 * time.Second

// inboundParts returns the parts of the listeners for a sidecar's own workload: one that
// gets all redirected connections (LSN-2), or one for each port if nothing is redirected
// (LSN-12).
func inboundParts(r *index.Reader, class index.LDSClass) []piece.Part {
	ports, problems := inboundPorts(r, class)
	uncertain := class.Certificates == (proxy.Certificates{})
	if uncertain && slices.ContainsFunc(ports, func(p index.InboundPort) bool { return p.Mode == index.PeerStrict }) || uncertain && class.Inbound.Default() == index.PeerStrict {
		problems = append(problems, piece.Problem{
			Severity: problem.Error, Code: "certificate", Resource: "Listener " + virtualInbound,
			Reason: "the sidecar has no source of certificates: its node names neither an agent (SDS_CLUSTER) nor files (TLS_SERVER_CERT_CHAIN, TLS_SERVER_KEY)",
			Advice: "start Envoy by meshlog agent, or name the files", Effect: "connections to ports of mode STRICT are closed",
		})
	}
	redirected, bound := apart(r, class, ports)
	parts := boundParts(r, class, bound)
	if class.Bind {
		return append(parts, problems...)
	}
	head := inboundHead{inbound: class.Inbound, transparent: class.Transparent, ingress: class.Ingress}
	parts = append(parts, head, closedPorts{uint32(r.Mesh().GetProxyListenPort())})
	for _, p := range redirected {
		parts = append(parts, inboundChains{
			listener: virtualInbound, name: listenerName(anyAddress, p.Port), cluster: piece.InboundCluster(p.Port), number: p.Port, ingress: class.Ingress,
			port: p.Port, protocol: p.Protocol, mode: p.Mode, certificates: class.Certificates, policies: policy.OfConnections(class),
		})
	}
	parts = append(parts, inboundChains{
		listener: virtualInbound, name: virtualInbound, cluster: piece.InboundPassthroughCluster,
		mode: class.Inbound.Default(), certificates: class.Certificates, policies: policy.OfConnections(class),
	})
	return append(parts, problems...)
}

// inboundPorts returns the ports of the workload, each once. It reports services that
// name one with another protocol, and ports that are the sidecar's own.
func inboundPorts(r *index.Reader, class index.LDSClass) (ports []index.InboundPort, problems []piece.Part) {
	report := func(p index.InboundPort, reason, effect string) {
		d := piece.Problem{Field: "spec.ports"}
		if in := r.Ingress(class.Ingress, p.Port); in.Field != "" {
			d.Key, d.Field = in.Key, in.Field+".port.number"
		} else if s := r.Service(p.Service); s != nil {
			d.Key = s.Key
		} else {
			return
		}
		problems = append(problems, piece.Problem{
			Severity: problem.Warning, Code: "conflict", Key: d.Key, Field: d.Field, Reason: reason, Advice: "use another port", Effect: effect,
		})
	}
	for _, p := range class.Inbound.Ports() {
		switch {
		case isOwn(r, class, p.Port):
			report(p, fmt.Sprintf("its port %d of the workload is one of the sidecar itself", p.Port), "connections to the port are closed")
		case len(ports) > 0 && ports[len(ports)-1].Port == p.Port:
			first := ports[len(ports)-1]
			report(p, fmt.Sprintf("%s names port %d of the same workload with another protocol", first.Service.Hostname, p.Port), "the protocol that the older service names is used")
		case class.Bind && p.Service == (index.ServiceID{}): // no service has it, so nothing listens there
		default:
			ports = append(ports, p)
		}
	}
	return ports, problems
}

// isOwn reports whether no connection is passed on to a port: those of the sidecar's
// administration (MTLS-14), and, with redirection, those of its listeners, at which the
// connection would come back to the sidecar.
func isOwn(r *index.Reader, class index.LDSClass, port uint32) bool {
	if slices.Contains(adminPorts, port) {
		return true
	}
	return !class.Bind && (port == uint32(r.Mesh().GetProxyListenPort()) || port == inboundPort)
}

// inboundHead is the part for the listener of all redirected connections, without its
// filter chains.
type inboundHead struct {
	inbound     index.Inbound
	transparent bool
	ingress     string // as in index.LDSClass
}

func (h inboundHead) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	l := &listenerv3.Listener{
		Name: virtualInbound, Address: socket(anyAddress, inboundPort), TrafficDirection: corev3.TrafficDirection_INBOUND,
		MaxConnectionsToAcceptPerSocketEvent: wrapperspb.UInt32(1),
	}
	detect(l, r)
	l.ListenerFilters = append(l.ListenerFilters, inspector("envoy.filters.listener.original_dst", &originaldstv3.OriginalDst{}))
	if h.transparent {
		l.Transparent = wrapperspb.Bool(true)
		l.ListenerFilters = append(l.ListenerFilters, inspector("envoy.filters.listener.original_src", &originalsrcv3.OriginalSrc{Mark: tproxyMark}))
	}
	l.ListenerFilters = append(l.ListenerFilters, inspectors(h.inbound, func(port uint32) bool { return r.Ingress(h.ingress, port).TLS != nil })...)
	return []piece.Piece{{Name: virtualInbound, Message: l, Partial: true}}, nil
}

// tproxyMark is the mark of connections that keep the address of the caller, as Istio's
// rules of redirection have it.
const tproxyMark = 1337

// detect sets how long a listener waits for the first bytes of a connection.
func detect(l *listenerv3.Listener, r *index.Reader) {
	l.ContinueOnListenerFiltersTimeout = true
	l.ListenerFiltersTimeout = durationpb.New(detectionTimeout)
	if d := r.Mesh().GetProtocolDetectionTimeout(); d.AsDuration() > 0 {
		l.ListenerFiltersTimeout = d
	}
}

// inspectors returns the filters that find the protocol of a connection, each disabled on
// the ports that need it not: a server that speaks first would wait for it (MTLS-9). ends
// reports whether a Sidecar has TLS end at a port.
func inspectors(inbound index.Inbound, ends func(port uint32) bool) []*listenerv3.ListenerFilter {
	tls := inspector("envoy.filters.listener.tls_inspector", &tlsinspectorv3.TlsInspector{})
	http := inspector("envoy.filters.listener.http_inspector", &httpinspectorv3.HttpInspector{})
	var plain, known []uint32
	last := uint32(0)
	for _, p := range inbound.Ports() {
		if p.Port == last {
			continue
		}
		last = p.Port
		if p.Mode == index.PeerDisable && !ends(p.Port) {
			plain = append(plain, p.Port)
		}
		if p.Mode == index.PeerStrict || !sniffs(p.Protocol) {
			known = append(known, p.Port)
		}
	}
	tls.FilterDisabled, http.FilterDisabled = onPorts(plain), onPorts(known)
	return []*listenerv3.ListenerFilter{tls, http}
}

// onPorts matches connections to these ports; nil: to none.
func onPorts(ports []uint32) *listenerv3.ListenerFilterChainMatchPredicate {
	var rules []*listenerv3.ListenerFilterChainMatchPredicate
	for _, p := range ports {
		rules = append(rules, &listenerv3.ListenerFilterChainMatchPredicate{Rule: &listenerv3.ListenerFilterChainMatchPredicate_DestinationPortRange{
			DestinationPortRange: &typev3.Int32Range{Start: int32(p), End: int32(p) + 1}, //nolint:gosec // ports fit
		}})
	}
	switch len(rules) {
	case 0:
		return nil
	case 1:
		return rules[0]
	}
	return &listenerv3.ListenerFilterChainMatchPredicate{Rule: &listenerv3.ListenerFilterChainMatchPredicate_OrMatch{
		OrMatch: &listenerv3.ListenerFilterChainMatchPredicate_MatchSet{Rules: rules},
	}}
}

// closedPorts is the part for the chains that close connections to ports of the sidecar
// itself, which redirection would otherwise lead to them (LSN-2).
type closedPorts struct{ outbound uint32 }

func (c closedPorts) Make(*index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	var all []*listenerv3.FilterChain
	for _, port := range append([]uint32{c.outbound, inboundPort}, adminPorts...) {
		all = append(all, &listenerv3.FilterChain{
			Name:             virtualInbound + "-blackhole",
			FilterChainMatch: &listenerv3.FilterChainMatch{DestinationPort: wrapperspb.UInt32(port)},
			Filters:          []*listenerv3.Filter{forward(piece.BlackHoleCluster)},
		})
	}
	return chains(virtualInbound, all...), nil
}

// apart returns the ports to which connections are redirected, and those that listeners of
// their own bind: all without redirection, else those of ingress listeners that say so.
func apart(r *index.Reader, class index.LDSClass, ports []index.InboundPort) (redirected, bound []index.InboundPort) {
	if class.Bind {
		return nil, ports
	}
	for _, p := range ports {
		if r.Ingress(class.Ingress, p.Port).Binds {
			bound = append(bound, p)
		} else {
			redirected = append(redirected, p)
		}
	}
	return redirected, bound
}

// boundParts returns the parts of a listener for each port, which binds the address at
// which the workload is called. The workload has the port on loopback, or where its Sidecar
// says.
func boundParts(r *index.Reader, class index.LDSClass, ports []index.InboundPort) []piece.Part {
	var parts []piece.Part
	for _, p := range ports {
		in := r.Ingress(class.Ingress, p.Port)
		address, why := boundAddress(class, in, p.Port)
		if why != nil {
			why.Resource = "Listener " + listenerName(address, p.Port)
			parts = append(parts, *why)
			if in.Field == "" {
				return parts // it is so with all ports
			}
			continue
		}
		name := "inbound_" + listenerName(address, p.Port)
		parts = append(parts, boundHead{name, address, p, in.TLS != nil}, inboundChains{
			listener: name, name: name, cluster: piece.InboundCluster(p.Port), number: p.Port, ingress: class.Ingress,
			protocol: p.Protocol, mode: p.Mode, certificates: class.Certificates, policies: policy.OfConnections(class),
		})
	}
	return parts
}

// boundAddress returns the address of a listener that binds a port, or why there can be none.
func boundAddress(class index.LDSClass, in index.Ingress, port uint32) (address string, why *piece.Problem) {
	address = cmp.Or(in.Bind, class.Address)
	if !class.Bind && in.Bind == "" {
		address = anyAddress
	}
	itself := in.Endpoint == "" || in.Endpoint == fmt.Sprintf("127.0.0.1:%d", port) || in.Endpoint == fmt.Sprintf("[::1]:%d", port)
	n, instance := in.OfInstance()
	const effect = "the sidecar has no listeners for its workload"
	switch {
	case address == "":
		return loopback, &piece.Problem{
			Severity: problem.Error, Code: "conflict", Reason: "the node of the sidecar names no address at which it is called",
			Advice: "give the sidecar an address of its own (INSTANCE_IPS), and let the workload listen on 127.0.0.1", Effect: effect,
		}
	case instance && uint32(n) == port, in.Field != "" && itself && (strings.HasPrefix(address, "127.0.0.1") || address == anyAddress || address == "::1"):
		return address, &piece.Problem{
			Severity: problem.Error, Code: "conflict", Key: in.Key, Field: in.Field,
			Reason: fmt.Sprintf("the listener binds port %d of %s, where the workload itself listens", port, address),
			Advice: "name another port in defaultEndpoint, or an address in bind", Effect: "the sidecar does not have the listener",
		}
	case in.Field == "" && strings.HasPrefix(address, "127.0.0.1"):
		return loopback, &piece.Problem{
			Severity: problem.Error, Code: "conflict", Reason: fmt.Sprintf("the sidecar is called at %s, where the workload itself listens", address),
			Advice: "give the sidecar an address of its own (INSTANCE_IPS), and let the workload listen on 127.0.0.1", Effect: effect,
		}
	}
	return address, nil
}

// boundHead is the part for a listener that binds a port, without its filter chains.
type boundHead struct {
	name, address string
	port          index.InboundPort
	ends          bool // TLS ends here
}

func (h boundHead) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	l := &listenerv3.Listener{Name: h.name, Address: socket(h.address, h.port.Port), TrafficDirection: corev3.TrafficDirection_INBOUND}
	detect(l, r)
	if h.port.Mode != index.PeerDisable || h.ends {
		l.ListenerFilters = append(l.ListenerFilters, inspector("envoy.filters.listener.tls_inspector", &tlsinspectorv3.TlsInspector{}))
	}
	if h.port.Mode != index.PeerStrict && sniffs(h.port.Protocol) {
		l.ListenerFilters = append(l.ListenerFilters, inspector("envoy.filters.listener.http_inspector", &httpinspectorv3.HttpInspector{}))
	}
	return []piece.Piece{{Name: h.name, Message: l, Partial: true}}, nil
}
