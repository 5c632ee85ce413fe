package route

import (
	"strconv"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
)

// Routes says what the RouteConfigurations for a class of clients are made of.
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

// Sniffed is the RouteConfiguration of a service on whose port is looked what
// is spoken, and which has an address, so that nobody else's requests come
// there (VS-6). ok is false where requests are those of all services of a port.
func Sniffed(s *index.Service, p index.Port) (name string, ok bool) {
	if p.Protocol != index.Sniffed || Address(s) == "" {
		return "", false
	}
	return s.Hostname + ":" + strconv.FormatUint(uint64(p.Number), 10), true
}

// ForPort is the RouteConfiguration of a sidecar's port.
func ForPort(port uint32) string { return strconv.FormatUint(uint64(port), 10) }

// ForProxying is the RouteConfiguration of the listener to which callers send
// requests as to a proxy.
const ForProxying = "http_proxy"

// head is what a RouteConfiguration says besides its virtual hosts (VS-10).
type head struct {
	routes string
	// ports: they count in the hosts of requests.
	ports bool
}

// Make implements piece.Part.
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

// catchAll is where requests to hosts go that are no service (VS-8).
type catchAll struct{ routes string }

// Make implements piece.Part.
func (c catchAll) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	route := &routev3.Route{Match: everything()}
	name := "allow_any"
	if AllowsAny(r.Mesh()) {
		action := &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: piece.PassthroughCluster}}
		(&translation{}).timeout(action, nil)
		route.Action = &routev3.Route_Route{Route: action}
	} else {
		name = "block_all"
		route.Action = &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 502}}
	}
	route.Name = name
	return partialHost(c.routes, &routev3.VirtualHost{Name: name, Domains: []string{"*"}, Routes: []*routev3.Route{route}}), nil
}

// AllowsAny says whether sidecars may connect to what is no service (MC-3).
func AllowsAny(mesh *meshconfig.MeshConfig) bool {
	return mesh.GetOutboundTrafficPolicy().GetMode() != meshconfig.MeshConfig_OutboundTrafficPolicy_REGISTRY_ONLY
}

// problem is what was found while the parts were put together.
type diagnosed struct{ diagnostic problem.Diagnostic }

// Make implements piece.Part.
func (p diagnosed) Make(*index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	return nil, []problem.Diagnostic{p.diagnostic}
}
