package route

import (
	"strconv"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
)

// Routes returns the parts of the RouteConfigurations for a class of clients.
func Routes(r *index.Reader, class index.RDSClass) []piece.Part {
	switch class.Client {
	case index.ClientSidecar:
		return sidecarParts(r, class)
	case index.ClientRouter:
		return routerParts(r, class)
	case index.ClientGRPC:
		return grpcParts(r, class)
	}
	return nil
}

// Sniffed returns the RouteConfiguration of a port whose protocol is detected,
// if the service has an address, so that no other service's requests arrive
// there (VS-6). Else ok is false: its requests are in the port's
// RouteConfiguration.
func Sniffed(s *index.Service, p index.Port) (name string, ok bool) {
	if p.Protocol != index.Sniffed || Address(s) == "" {
		return "", false
	}
	return s.Hostname + ":" + strconv.FormatUint(uint64(p.Number), 10), true
}

// ForPort returns the name of the RouteConfiguration of a sidecar's port.
func ForPort(port uint32) string { return strconv.FormatUint(uint64(port), 10) }

// ForProxying is the RouteConfiguration of the listener to which callers send
// requests as to a proxy.
const ForProxying = "http_proxy"

// head is the part for a RouteConfiguration without its virtual hosts (VS-10).
type head struct {
	routes string
	// ports: the port in a request's host counts.
	ports bool
}

func (h head) Make(*index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	return partial(h.routes, &routev3.RouteConfiguration{
		Name:                           h.routes,
		ValidateClusters:               wrapperspb.Bool(false),
		MaxDirectResponseBodySizeBytes: wrapperspb.UInt32(1 << 20),
		IgnorePortInHostMatching:       !h.ports,
	}), nil
}

func partial(routes string, c *routev3.RouteConfiguration) []piece.Piece {
	return []piece.Piece{{Name: routes, Message: c, Partial: true}}
}

func partialHost(routes string, h *routev3.VirtualHost) []piece.Piece {
	h.IncludeRequestAttemptCount = true
	return partial(routes, &routev3.RouteConfiguration{VirtualHosts: []*routev3.VirtualHost{h}})
}

// catchAll is the part for requests to unknown hosts (VS-8).
type catchAll struct {
	routes   string
	outbound string // as in index.RDSClass
}

func (c catchAll) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	route := &routev3.Route{Match: everything()}
	name := "allow_any"
	if to := r.Outbound(c.outbound); to.AllowAny {
		cluster := UnknownCluster(to)
		if to.Resolve {
			name, cluster = "allow_any_dynamic_dns", piece.DynamicDNSCluster
		}
		action := &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster}}
		timeout(action, nil, false)
		route.Action = &routev3.Route_Route{Route: action}
	} else {
		name = "block_all"
		route.Action = &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 502}}
	}
	route.Name = name
	return partialHost(c.routes, &routev3.VirtualHost{Name: name, Domains: []string{"*"}, Routes: []*routev3.Route{route}}), nil
}

// UnknownCluster returns the cluster for calls to unknown destinations (MC-3, SC-7).
func UnknownCluster(to index.Outbound) string {
	switch proxy := to.Proxy; {
	case !to.AllowAny:
		return piece.BlackHoleCluster
	case proxy != nil:
		return piece.ClusterName(proxy.GetHost(), proxy.GetSubset(), proxy.GetPort().GetNumber())
	}
	return piece.PassthroughCluster
}
