package listener

import (
	"strconv"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/route"
)

// grpcParts returns the parts that a class of gRPC clients gets: a Listener for
// each name that a channel dials. Each service has the names host:port and
// alias:port. A Kubernetes service also has the short names that mean it in all
// namespaces, name.namespace:port and name.namespace.svc:port. If such a name is
// the host of another service, that service has it. One that is a server has the Listeners
// of its ports too.
func grpcParts(r *index.Reader, class index.LDSClass) []piece.Part {
	var services []*index.Service
	for _, e := range r.Egress(class.Scope) {
		services = append(services, e.Services...)
	}
	parts := make([]piece.Part, 0, 2*len(services))
	for _, s := range services {
		parts = append(parts, dialed{s.ServiceID, false})
	}
	for _, s := range services {
		if s.Kubernetes || len(s.Aliases) > 0 {
			parts = append(parts, dialed{s.ServiceID, true})
		}
	}
	return append(parts, serverParts(class)...)
}

// dialed is the part for the Listeners of one service: by its host, or by its
// other names.
type dialed struct {
	service index.ServiceID
	others  bool
}

func (p dialed) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	s := r.Service(p.service)
	if s == nil {
		return nil, nil
	}
	hosts := []string{s.Hostname}
	if p.others {
		hosts = otherNames(r, s)
	}
	var pieces []piece.Piece
	for _, port := range s.Ports {
		if !piece.TakesRequests(port.Protocol) {
			continue
		}
		for _, host := range hosts {
			name := host + ":" + strconv.FormatUint(uint64(port.Number), 10)
			l := apiListener(name, piece.ClusterName(s.Hostname, "", port.Number))
			pieces = append(pieces, piece.Piece{Name: name, Message: l})
		}
	}
	return pieces, nil
}

// otherNames returns the names under which clients dial s, without its host.
func otherNames(r *index.Reader, s *index.Service) []string {
	if !s.Kubernetes {
		return s.Aliases
	}
	return append(route.ShortNames(r, s.Hostname), s.Aliases...)
}

func apiListener(name, routes string) *listenerv3.Listener {
	return &listenerv3.Listener{
		Name: name,
		ApiListener: &listenerv3.ApiListener{ApiListener: piece.Any(&hcmv3.HttpConnectionManager{
			StatPrefix: name,
			RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{
				RouteConfigName: routes, ConfigSource: piece.FromADS(),
			}},
			HttpFilters: []*hcmv3.HttpFilter{
				httpFilter(route.FaultFilter, &faultv3.HTTPFault{}), // routes configure it
				httpFilter(routerFilter, &routerv3.Router{}),
			},
		})},
	}
}
