// Package proxyless makes resources for gRPC clients, which are their own proxy
// and understand a part of Envoy's API: a Listener for each name that a channel
// dials, and the Clusters and ClusterLoadAssignments behind it. Package route
// makes the RouteConfigurations, which mean the same to all clients. A gRPC
// client rejects everything else (G10; all facts about gRPC clients are in
// frontend/FACTS.md).
//
// It is pure.
package proxyless

import (
	"strconv"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/route"
)

// Listeners returns the parts that a class of gRPC clients gets by LDS. Each
// service has the name host:port, and one of Kubernetes also the short names
// that are the same for all namespaces, name.namespace:port and
// name.namespace.svc:port. If a short name is the host of another service, that
// service has it.
func Listeners(r *index.Reader, class index.LDSClass) []piece.Part {
	services := r.Services(class.Scope)
	parts := make([]piece.Part, 0, 2*len(services))
	for _, s := range services {
		parts = append(parts, listeners{s.ServiceID, false})
	}
	for _, s := range services {
		if s.Kubernetes || len(s.Aliases) > 0 {
			parts = append(parts, listeners{s.ServiceID, true})
		}
	}
	return parts
}

// speaksGRPC reports whether a port may take gRPC.
func speaksGRPC(p index.Port) bool { return p.Protocol.IsHTTP() || p.Protocol == index.Sniffed }

// listeners is the part for the Listeners of one service: by its host, or by
// its other names.
type listeners struct {
	service index.ServiceID
	others  bool
}

func (p listeners) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	s := r.Service(p.service)
	if s == nil {
		return nil, nil
	}
	hosts := []string{s.Hostname}
	if p.others {
		hosts = append(shortNames(s, r.DomainSuffix()), s.Aliases...)
	}
	var pieces []piece.Piece
	for _, port := range s.Ports {
		if !speaksGRPC(port) {
			continue
		}
		for _, host := range hosts {
			l := listener(host+":"+strconv.FormatUint(uint64(port.Number), 10), piece.ClusterName(s.Hostname, "", port.Number))
			pieces = append(pieces, piece.Piece{Name: l.GetName(), Message: l})
		}
	}
	return pieces, nil
}

// shortNames returns the names of a Kubernetes service that are the same
// everywhere.
func shortNames(s *index.Service, domainSuffix string) []string {
	svc, ok := strings.CutSuffix(s.Hostname, "."+domainSuffix)
	if !ok || !s.Kubernetes {
		return nil
	}
	return []string{strings.TrimSuffix(svc, ".svc"), svc}
}

func listener(name, routes string) *listenerv3.Listener {
	return &listenerv3.Listener{
		Name: name,
		ApiListener: &listenerv3.ApiListener{ApiListener: piece.Any(&hcmv3.HttpConnectionManager{
			StatPrefix: name,
			RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{
				RouteConfigName: routes, ConfigSource: piece.FromADS(),
			}},
			HttpFilters: []*hcmv3.HttpFilter{
				filter(route.FaultFilter, &faultv3.HTTPFault{}), // routes configure it
				filter("envoy.filters.http.router", &routerv3.Router{}),
			},
		})},
	}
}

func filter(name string, config proto.Message) *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: piece.Any(config)}}
}
