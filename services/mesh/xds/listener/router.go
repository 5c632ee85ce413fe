package listener

import (
	"fmt"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/proxy_protocol/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/gateway"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/policy"
	"meshlog.dev/services/mesh/xds/route"
)

// routerParts returns the parts of a router's listeners, one for each port of
// its Gateways (GW-2, GW-3).
func routerParts(r *index.Reader, class index.LDSClass) []piece.Part {
	ports, problems := gateway.Ports(r, class.Gateways, class.Listens)
	more := needsOf(r, class.Scope)
	var parts []piece.Part
	for _, p := range ports {
		switch {
		case p.Form == gateway.Connections:
			parts = append(parts, tcpPart(r, class, p))
		case p.Form == gateway.ServerNames:
			parts = append(parts, namesPart(r, class, p, more))
		default:
			parts = append(parts, routerRequests{at: addressOf(p), routes: p.Routes(), grpcWeb: p.GRPCWeb, alpn: offers(r, class.Certificates), needs: more})
		}
	}
	return append(append(parts, problems...), gateway.Fronts(r, class.Gateways, class.Scope, ports)...)
}

// edgeAddress is where a router listens.
type edgeAddress struct {
	bind string
	port uint32
	// named is the port as the Gateways name it, translated those of them that a Service in
	// front sends here, one per line; empty: there is none (GW-3).
	named      uint32
	translated string
}

func addressOf(p *gateway.Port) edgeAddress {
	a := edgeAddress{bind: p.Bind, port: p.Number, named: p.Named()}
	if all := p.All(); len(all) > 1 || a.named != a.port {
		a.translated = strings.Trim(fmt.Sprint(all), "[]")
	}
	return a
}

func (a edgeAddress) name() string { return listenerName(a.bind, a.port) }

// metadata names the ports of Gateways that are served here, for people and simulations.
func (a edgeAddress) metadata() *corev3.Metadata {
	if a.translated == "" {
		return nil
	}
	var all []*structpb.Value
	for _, port := range strings.Fields(a.translated) {
		all = append(all, structpb.NewStringValue(port))
	}
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{piece.GatewayPorts: {
		Fields: map[string]*structpb.Value{"ports": structpb.NewListValue(&structpb.ListValue{Values: all})},
	}}}
}

func edgeListener(mesh *meshconfig.MeshConfig, at edgeAddress, all ...*listenerv3.FilterChain) []piece.Piece {
	name := at.name()
	l := &listenerv3.Listener{
		Name: name, Address: socket(at.bind, at.port), Metadata: at.metadata(), TrafficDirection: corev3.TrafficDirection_OUTBOUND,
		ListenerFiltersTimeout:               durationpb.New(0),
		MaxConnectionsToAcceptPerSocketEvent: wrapperspb.UInt32(1), // so that workers share the connections (LSN-17)
		FilterChains:                         all,
	}
	if topology(mesh).GetProxyProtocol() != nil {
		l.ListenerFilters = []*listenerv3.ListenerFilter{
			inspector("envoy.filters.listener.proxy_protocol", &proxyprotocolv3.ProxyProtocol{}),
		}
	}
	return []piece.Piece{{Name: name, Message: l}}
}

// routerRequests is the part for a router's listener for plain HTTP.
type routerRequests struct {
	at      edgeAddress
	routes  string
	grpcWeb bool
	alpn    bool // as in chooser
	needs
}

func (q routerRequests) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	mesh := r.Mesh()
	filter := manager(mesh, "outbound_"+q.at.name(), q.routes, filters(q.grpcWeb, q.alpn, q.needs), edge(mesh))
	return edgeListener(mesh, q.at, &listenerv3.FilterChain{Filters: []*listenerv3.Filter{filter}}), nil
}

// edge puts the filters of policies first, and sets what a router believes about clients,
// by what stands in front of it (GW-17).
func edge(mesh *meshconfig.MeshConfig) func(*hcmv3.HttpConnectionManager) {
	return func(m *hcmv3.HttpConnectionManager) {
		enforce(m, mesh)
		m.UseRemoteAddress = wrapperspb.Bool(true)
		m.XffNumTrustedHops = topology(mesh).GetNumTrustedProxies()
		m.ForwardClientCertDetails = clientCertificates(topology(mesh).GetForwardClientCertDetails())
		switch m.ForwardClientCertDetails {
		case hcmv3.HttpConnectionManager_SANITIZE_SET, hcmv3.HttpConnectionManager_APPEND_FORWARD:
			m.SetCurrentClientCertDetails = &hcmv3.HttpConnectionManager_SetCurrentClientCertDetails{
				Subject: wrapperspb.Bool(true), Cert: true, Dns: true, Uri: true,
			}
		}
	}
}

// topology describes the proxies in front of routers.
func topology(mesh *meshconfig.MeshConfig) *meshconfig.Topology {
	return mesh.GetDefaultConfig().GetGatewayTopology()
}

// clientCertificates returns how the header about client certificates is
// treated.
func clientCertificates(how meshconfig.ForwardClientCertDetails) hcmv3.HttpConnectionManager_ForwardClientCertDetails {
	if v, ok := hcmv3.HttpConnectionManager_ForwardClientCertDetails_value[how.String()]; ok {
		return hcmv3.HttpConnectionManager_ForwardClientCertDetails(v) // Istio's names are Envoy's
	}
	return hcmv3.HttpConnectionManager_SANITIZE_SET
}

// routerConnections is the part for a router's listener for TCP.
type routerConnections struct {
	at       edgeAddress
	bound    route.Bound // of their routes the first for a connection counts
	policies policy.Connections
}

func tcpPart(r *index.Reader, class index.LDSClass, p *gateway.Port) piece.Part {
	var bindings []route.Binding
	for _, s := range p.Servers {
		for _, vs := range r.VirtualServices(class.Scope, s.Gateway) {
			if vs.TCP && len(s.Intersect(vs.Key.Namespace, vs.Hosts)) > 0 {
				bindings = append(bindings, route.Binding{Gateway: s.Gateway, VirtualService: vs})
			}
		}
	}
	return routerConnections{at: addressOf(p), bound: route.Bind(r, class.Sources, class.Scope, bindings), policies: policy.OfConnections(class)}
}

// Make returns no listener if no route matches (VST-9).
func (c routerConnections) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	var routes []tcpRoute
	var problems []problem.Diagnostic
	for name, key := range c.bound.All() {
		t := &connector{Options: route.NewOptions(r, c.bound.Caller, c.at.named, name), key: key, sources: true, defaults: true}
		routes = append(routes, t.tcpRoutes(r.VirtualService(key))...)
		problems = append(problems, t.problems...)
		if n := len(routes); n > 0 && routes[n-1].everything() {
			break
		}
	}
	if len(routes) == 0 {
		return nil, nil
	}
	policies, more := c.policies.Filters(r)
	return edgeListener(r.Mesh(), c.at, guarded(policies, ofRoutes(arrange(routes))...)...), append(problems, more...)
}
