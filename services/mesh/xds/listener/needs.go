package listener

import (
	"slices"

	forwardv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/dynamic_forward_proxy/v3"
	sessionv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/stateful_session/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/route"
)

// needs says which filters requests need because some services do. The filters leave alone
// the requests to other services.
type needs struct {
	dynamic  bool // requests name the endpoints of a service (SE-8)
	sessions bool // clients of a service stay with one endpoint (SVC-15)
}

// needsOf returns what the services in a scope need.
func needsOf(r *index.Reader, scope index.Scope) (n needs) {
	for _, s := range r.Services(scope) {
		n.dynamic = n.dynamic || s.Resolution == index.DynamicDNS
		n.sessions = n.sessions || s.Sticky()
	}
	return n
}

// with adds what sidecars need because of the MeshConfig.
func (n needs) with(mesh *meshconfig.MeshConfig) needs {
	n.dynamic = n.dynamic || piece.ResolvesUnknown(mesh)
	return n
}

// addTo inserts the filters before the last one.
func (n needs) addTo(all []*hcmv3.HttpFilter) []*hcmv3.HttpFilter {
	if n.sessions {
		all = slices.Insert(all, len(all)-1, httpFilter(route.SessionFilter, &sessionv3.StatefulSession{})) // routes have the settings
	}
	if n.dynamic {
		all = slices.Insert(all, len(all)-1, httpFilter("envoy.filters.http.dynamic_forward_proxy", &forwardv3.FilterConfig{
			ImplementationSpecifier: &forwardv3.FilterConfig_DnsCacheConfig{DnsCacheConfig: piece.DynamicDNS()},
		}))
	}
	return all
}
