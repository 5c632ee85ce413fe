package envoytest_test

import (
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	. "meshlog.dev/services/mesh/meshtest"

	"meshlog.dev/services/suite/envoytest"
)

// record counts the errors that Validate reports.
type record struct {
	testing.TB
	said int
}

func (r *record) Errorf(string, ...any) { r.said++ }

func TestValidate(t *testing.T) {
	good := envoytest.Config{
		Clusters:  []*clusterv3.Cluster{Cluster("a", 1)},
		Endpoints: []*endpointv3.ClusterLoadAssignment{Endpoints("a", 1)},
		Listeners: []*listenerv3.Listener{TCPListener("l", 9001, "a")},
		Routes:    []*routev3.RouteConfiguration{Routes("r", To("a", 1))},
	}
	envoytest.Validate(t, good)

	bad := good
	bad.Endpoints = []*endpointv3.ClusterLoadAssignment{Endpoints("a", 1)}
	bad.Endpoints[0].GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint().GetAddress().GetSocketAddress().Address = "no address"
	routes := good
	routes.Routes = []*routev3.RouteConfiguration{Routes("r", To("nowhere", 1))}
	for name, c := range map[string]envoytest.Config{"endpoints": bad, "routes": routes} {
		r := &record{TB: t}
		envoytest.Validate(r, c)
		if r.said == 0 {
			t.Errorf("Validate accepts bad %s", name)
		}
	}
}
