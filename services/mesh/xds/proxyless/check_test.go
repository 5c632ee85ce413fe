package proxyless_test

import (
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/proxyless"
)

// Each listener is valid except for its change.
func TestCheckListener(t *testing.T) {
	check(t, goodListener, map[string]func(*listenerv3.Listener){
		"no manager":      func(l *listenerv3.Listener) { l.ApiListener = nil },
		"router is first": inManager(func(m *hcmv3.HttpConnectionManager) { m.HttpFilters = append(m.HttpFilters, m.HttpFilters[0]) }),
		"no router":       inManager(func(m *hcmv3.HttpConnectionManager) { m.HttpFilters = nil }),
		"unknown filter": inManager(func(m *hcmv3.HttpConnectionManager) {
			m.HttpFilters = append([]*hcmv3.HttpFilter{filter("cors", &corsv3.Cors{})}, m.HttpFilters...)
		}),
		"routes from elsewhere": inManager(func(m *hcmv3.HttpConnectionManager) {
			m.GetRds().ConfigSource = &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_Path{Path: "/routes"}} //nolint:staticcheck // any other source
		}),
		"trusted hops": inManager(func(m *hcmv3.HttpConnectionManager) { m.XffNumTrustedHops = 1 }),
	})
	optional := goodListener()
	inManager(func(m *hcmv3.HttpConnectionManager) {
		cors := filter("cors", &corsv3.Cors{})
		cors.IsOptional = true
		m.HttpFilters = append([]*hcmv3.HttpFilter{cors}, m.HttpFilters...)
	})(optional)
	if problems := proxyless.Check(optional); len(problems) > 0 {
		t.Errorf("problems with an unknown but optional filter: %v", problems)
	}
}

func TestCheckCluster(t *testing.T) {
	check(t, func() *clusterv3.Cluster {
		return &clusterv3.Cluster{
			Name: "c", ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
			EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: piece.FromADS()},
		}
	}, map[string]func(*clusterv3.Cluster){
		"STATIC": func(c *clusterv3.Cluster) {
			c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
		},
		"STRICT_DNS": func(c *clusterv3.Cluster) {
			c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}
		},
		"an extension": func(c *clusterv3.Cluster) {
			c.ClusterDiscoveryType = &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{Name: "envoy.clusters.dns"}}
		},
		"LOGICAL_DNS without endpoint": func(c *clusterv3.Cluster) {
			c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_LOGICAL_DNS}
		},
		"no source":   func(c *clusterv3.Cluster) { c.EdsClusterConfig = nil },
		"MAGLEV":      func(c *clusterv3.Cluster) { c.LbPolicy = clusterv3.Cluster_MAGLEV },
		"RANDOM":      func(c *clusterv3.Cluster) { c.LbPolicy = clusterv3.Cluster_RANDOM },
		"PASSTHROUGH": func(c *clusterv3.Cluster) { c.LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED },
		"TLS":         func(c *clusterv3.Cluster) { c.TransportSocket = &corev3.TransportSocket{Name: "tls"} },
	})
}

func TestCheckEndpoints(t *testing.T) {
	type assignment = endpointv3.ClusterLoadAssignment
	first := func(a *assignment) *endpointv3.LocalityLbEndpoints { return a.GetEndpoints()[0] }
	check(t, func() *assignment {
		return &assignment{ClusterName: "c", Endpoints: []*endpointv3.LocalityLbEndpoints{{
			Locality: &corev3.Locality{}, LoadBalancingWeight: wrapperspb.UInt32(1), LbEndpoints: []*endpointv3.LbEndpoint{lbEndpoint("10.0.0.1")},
		}}}
	}, map[string]func(*assignment){
		"no locality":        func(a *assignment) { first(a).Locality = nil },
		"no weight":          func(a *assignment) { first(a).LoadBalancingWeight = nil },
		"a locality twice":   func(a *assignment) { a.Endpoints = append(a.Endpoints, first(a)) },
		"a priority missing": func(a *assignment) { first(a).Priority = 1 },
		"an address twice":   func(a *assignment) { first(a).LbEndpoints = append(first(a).LbEndpoints, lbEndpoint("10.0.0.1")) },
		"a name":             func(a *assignment) { first(a).LbEndpoints = []*endpointv3.LbEndpoint{lbEndpoint("example.com")} },
		"an internal address": func(a *assignment) {
			first(a).LbEndpoints[0].GetEndpoint().Address = &corev3.Address{Address: &corev3.Address_EnvoyInternalAddress{}}
		},
		"a weight of 0": func(a *assignment) { first(a).LbEndpoints[0].LoadBalancingWeight = wrapperspb.UInt32(0) },
	})
}

func TestCheckRoutes(t *testing.T) {
	type routes = routev3.RouteConfiguration
	first := func(r *routes) *routev3.Route { return r.GetVirtualHosts()[0].GetRoutes()[0] }
	check(t, func() *routes {
		return &routes{Name: "r", VirtualHosts: []*routev3.VirtualHost{{Name: "h", Domains: []string{"*"}, Routes: []*routev3.Route{{
			Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
			Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: "c"}}},
		}}}}}
	}, map[string]func(*routes){
		"a path of another kind": func(r *routes) {
			first(r).Match.PathSpecifier = &routev3.RouteMatch_PathSeparatedPrefix{PathSeparatedPrefix: "/a"}
		},
		"no path":  func(r *routes) { first(r).Match.PathSpecifier = nil },
		"metadata": func(r *routes) { first(r).Match.DynamicMetadata = []*matcherv3.MetadataMatcher{{}} },
		"unknown filter": func(r *routes) {
			first(r).TypedPerFilterConfig = map[string]*anypb.Any{"cors": piece.Any(&corsv3.CorsPolicy{})}
		},
		"no retries": func(r *routes) {
			first(r).GetRoute().RetryPolicy = &routev3.RetryPolicy{NumRetries: wrapperspb.UInt32(0)}
		},
		"no backoff": func(r *routes) {
			first(r).GetRoute().RetryPolicy = &routev3.RetryPolicy{RetryBackOff: &routev3.RetryPolicy_RetryBackOff{}}
		},
		"no weights": func(r *routes) {
			first(r).GetRoute().ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: &routev3.WeightedCluster{}}
		},
	})
}

func check[M proto.Message](t *testing.T, good func() M, changes map[string]func(M)) {
	t.Helper()
	if problems := refused(good()); len(problems) > 0 {
		t.Errorf("problems with the valid message: %v", problems)
	}
	for name, change := range changes {
		bad := good()
		change(bad)
		if len(refused(bad)) == 0 {
			t.Errorf("%s: no problem was found", name)
		}
	}
}

// refused returns the reasons why a message is not served to gRPC clients.
func refused(m proto.Message) []string {
	reasons := proxyless.Check(m)
	for _, d := range validate.CheckEnvoy(m) {
		if d.Severity == problem.Error {
			reasons = append(reasons, d.Reason)
		}
	}
	return reasons
}

func goodListener() *listenerv3.Listener {
	l := &listenerv3.Listener{Name: "l", ApiListener: &listenerv3.ApiListener{ApiListener: piece.Any(&hcmv3.HttpConnectionManager{
		StatPrefix:     "l",
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{RouteConfigName: "r", ConfigSource: piece.FromADS()}},
		HttpFilters:    []*hcmv3.HttpFilter{filter("router", &routerv3.Router{})},
	})}}
	return l
}

func filter(name string, config proto.Message) *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: piece.Any(config)}}
}

// inManager changes a listener's connection manager.
func inManager(change func(*hcmv3.HttpConnectionManager)) func(*listenerv3.Listener) {
	return func(l *listenerv3.Listener) {
		m := new(hcmv3.HttpConnectionManager)
		if err := l.GetApiListener().GetApiListener().UnmarshalTo(m); err != nil {
			panic(err)
		}
		change(m)
		l.ApiListener.ApiListener = piece.Any(m)
	}
}

func lbEndpoint(address string) *endpointv3.LbEndpoint {
	return &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 80},
		}}},
	}}}
}
