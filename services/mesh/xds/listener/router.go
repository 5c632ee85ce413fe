package listener

import (
	"fmt"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/proxy_protocol/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/gateway"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/route"
)

// routerParts returns the parts of a router's listeners, one for each port of
// its Gateways (GW-2, GW-3).
func routerParts(r *index.Reader, class index.LDSClass) []piece.Part {
	ports, problems := gateway.Ports(r, class.Gateways)
	var parts []piece.Part
	for _, p := range ports {
		switch p.Kind {
		case gateway.HTTP:
			parts = append(parts, routerRequests{bind: p.Bind, port: p.Number, routes: p.Routes(), grpcWeb: p.GRPCWeb})
		case gateway.TCP:
			parts = append(parts, tcpPart(r, class, p))
		}
	}
	for _, d := range problems {
		parts = append(parts, piece.Problem(d))
	}
	return parts
}

func routerListener(mesh *meshconfig.MeshConfig, bind string, port uint32, filter *listenerv3.Filter) []piece.Piece {
	name := listenerName(bind, port)
	l := &listenerv3.Listener{
		Name: name, Address: socket(bind, port), TrafficDirection: corev3.TrafficDirection_OUTBOUND,
		ListenerFiltersTimeout:               durationpb.New(0),
		MaxConnectionsToAcceptPerSocketEvent: wrapperspb.UInt32(1), // so that workers share the connections (LSN-17)
		FilterChains:                         []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{filter}}},
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
	bind    string
	port    uint32
	routes  string
	grpcWeb bool
}

func (q routerRequests) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	mesh := r.Mesh()
	edge := func(m *hcmv3.HttpConnectionManager) { // what stands in front of the router (GW-17)
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
	name := listenerName(q.bind, q.port)
	return routerListener(mesh, q.bind, q.port, manager(mesh, "outbound_"+name, q.routes, q.grpcWeb, edge)), nil
}

// topology describes the proxies in front of routers.
func topology(mesh *meshconfig.MeshConfig) *meshconfig.Topology {
	return mesh.GetDefaultConfig().GetGatewayTopology()
}

// clientCertificates returns how the header about client certificates is
// treated.
func clientCertificates(how meshconfig.ForwardClientCertDetails) hcmv3.HttpConnectionManager_ForwardClientCertDetails {
	switch how {
	case meshconfig.ForwardClientCertDetails_SANITIZE:
		return hcmv3.HttpConnectionManager_SANITIZE
	case meshconfig.ForwardClientCertDetails_FORWARD_ONLY:
		return hcmv3.HttpConnectionManager_FORWARD_ONLY
	case meshconfig.ForwardClientCertDetails_APPEND_FORWARD:
		return hcmv3.HttpConnectionManager_APPEND_FORWARD
	case meshconfig.ForwardClientCertDetails_ALWAYS_FORWARD_ONLY:
		return hcmv3.HttpConnectionManager_ALWAYS_FORWARD_ONLY
	}
	return hcmv3.HttpConnectionManager_SANITIZE_SET
}

// routerConnections is the part for a router's listener for TCP.
type routerConnections struct {
	bind string
	port uint32
	// virtualServices may route it, the first that matches does. Each line has a
	// Gateway, a space and the row of a key.
	virtualServices string
	sources         index.SelectorSet
	scope           index.Scope
}

func tcpPart(r *index.Reader, class index.LDSClass, p *gateway.Port) piece.Part {
	var lines []string
	var heads []*index.VirtualServiceHead
	for _, s := range p.Servers {
		for _, vs := range r.VirtualServices(class.Scope, s.Gateway) {
			if vs.TCP && len(s.Intersect(vs.Key.Namespace, vs.Hosts)) > 0 {
				lines = append(lines, s.Gateway+" "+vs.Key.Row())
				heads = append(heads, vs)
			}
		}
	}
	return routerConnections{
		bind: p.Bind, port: p.Number, virtualServices: strings.Join(lines, "\n"),
		sources: route.Relevant(class.Sources, heads...),
		scope:   route.Narrow(r, index.Scope{Services: class.Scope.Services}, heads...),
	}
}

// Make returns no listener if no route matches (VST-9).
func (c routerConnections) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	for line := range strings.SplitSeq(c.virtualServices, "\n") {
		name, row, ok := strings.Cut(line, " ")
		if !ok {
			continue
		}
		key, _, err := ident.ParseRow(row)
		if err != nil {
			panic(fmt.Sprintf("row %q is a key's: %v", row, err))
		}
		t := &connector{r: r, key: key, port: c.port, gateway: name, sources: c.sources, scope: c.scope}
		if _, filter := t.routes(r.VirtualService(key)); filter != nil {
			return routerListener(r.Mesh(), c.bind, c.port, filter), t.problems
		}
	}
	return nil, nil
}
