package trial

import (
	"fmt"
	"sync"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/route"
)

const mostProblems = 20 // a user corrects the first ones first

// virtualService translates each HTTP route by itself, for every caller and
// port: what comes before a route decides whether it is reached, not whether
// Envoy takes it.
func virtualService(vs *networking.VirtualService) []problem.Diagnostic {
	var all []problem.Diagnostic
	for i, r := range vs.GetHttp() {
		if reason := refusedRoute(r); reason != "" {
			all = append(all, diagnostic(fmt.Sprintf("spec.http[%d]", i), "route", reason))
		}
		if len(all) == mostProblems {
			break
		}
	}
	return all
}

// refusedRoute returns why Envoy would refuse the routes made of r, or "".
func refusedRoute(r *networking.HTTPRoute) (reason string) {
	defer func() {
		if v := recover(); v != nil {
			reason = fmt.Sprintf("making it panicked: %v", v)
		}
	}()
	host := &routev3.VirtualHost{Name: "trial", Domains: []string{"*"}}
	one := shallow(r)
	for i := 0; i == 0 || i < len(r.GetMatch()); i++ {
		if len(r.GetMatch()) > 0 {
			one.Match = []*networking.HTTPMatchRequest{forAll(r.GetMatch()[i])}
		}
		routes, _ := route.Translate(ident.Key{Name: "trial"}, &networking.VirtualService{Http: []*networking.HTTPRoute{one}}, options())
		host.Routes = append(host.Routes, routes...)
		if i == 0 { // the other routes differ in their match
			one = &networking.HTTPRoute{DirectResponse: &networking.HTTPDirectResponse{Status: 200}}
		}
	}
	p := piece.Piece{Message: &routev3.RouteConfiguration{VirtualHosts: []*routev3.VirtualHost{host}}}
	for _, refusal := range xds.RefusedPiece(ident.RDS, p) {
		return refusal.Reason
	}
	return ""
}

// forAll returns m without its conditions on port, gateway and caller, which
// are decided before routes are made.
func forAll(m *networking.HTTPMatchRequest) *networking.HTTPMatchRequest {
	m = shallow(m)
	m.Port, m.Gateways, m.SourceLabels, m.SourceNamespace = 0, nil, nil, ""
	return m
}

// options returns what routes of a trial are made with: every destination is a
// service with one port, and every delegate has a route for all requests.
var options = sync.OnceValue(func() route.Options {
	config := empty().MeshConfig()
	leaf := &networking.VirtualService{Http: []*networking.HTTPRoute{{
		Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: "trial"}}},
	}}}
	return route.Options{
		Port: 80, Gateway: route.Mesh,
		Mesh:     func() *mesh.MeshConfig { return config },
		Service:  func(host string) *index.Service { return &index.Service{ServiceID: index.ServiceID{Hostname: host}} },
		Rule:     func(string) *networking.DestinationRule { return nil },
		Delegate: func(string, string) *networking.VirtualService { return leaf },
	}
})
