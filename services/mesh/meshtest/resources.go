package meshtest

import (
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

var adsSource = &corev3.ConfigSource{
	ResourceApiVersion:    corev3.ApiVersion_V3,
	ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
}

// Cluster returns a cluster of type EDS. Its connect timeout makes contents of one
// name different.
func Cluster(name string, seconds int) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 name,
		ConnectTimeout:       durationpb.New(time.Duration(seconds) * time.Second),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: adsSource},
	}
}

// Endpoints returns a cluster's endpoints: ports of 127.0.0.1.
func Endpoints(cluster string, ports ...uint32) *endpointv3.ClusterLoadAssignment {
	l := &endpointv3.LocalityLbEndpoints{}
	for _, p := range ports {
		l.LbEndpoints = append(l.LbEndpoints, &endpointv3.LbEndpoint{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: address(p)}},
		})
	}
	return &endpointv3.ClusterLoadAssignment{ClusterName: cluster, Endpoints: []*endpointv3.LocalityLbEndpoints{l}}
}

func address(port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

// Listener returns a listener that gets its routes by RDS.
func Listener(name string, port uint32, routes string) *listenerv3.Listener {
	return listener(name, port, "http", &hcmv3.HttpConnectionManager{
		StatPrefix:     name,
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{RouteConfigName: routes, ConfigSource: adsSource}},
	})
}

// TCPListener returns a listener that forwards connections to a cluster.
func TCPListener(name string, port uint32, cluster string) *listenerv3.Listener {
	return listener(name, port, "tcp", &tcpv3.TcpProxy{StatPrefix: name, ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: cluster}})
}

func listener(name string, port uint32, filter string, config proto.Message) *listenerv3.Listener {
	packed, err := anypb.New(config)
	if err != nil {
		panic(err)
	}
	return &listenerv3.Listener{
		Name:    name,
		Address: address(port),
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name: filter, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed},
		}}}},
	}
}

// Weight is the weight of a cluster in Routes.
type Weight struct {
	Cluster string
	Weight  uint32
}

// To returns the weight of a cluster.
func To(cluster string, weight uint32) Weight { return Weight{cluster, weight} }

// Routes returns a RouteConfiguration that sends everything to clusters by weight.
func Routes(name string, weights ...Weight) *routev3.RouteConfiguration {
	w := &routev3.WeightedCluster{}
	for _, x := range weights {
		w.Clusters = append(w.Clusters, &routev3.WeightedCluster_ClusterWeight{Name: x.Cluster, Weight: wrapperspb.UInt32(x.Weight)})
	}
	return &routev3.RouteConfiguration{Name: name, VirtualHosts: []*routev3.VirtualHost{{
		Name: "all", Domains: []string{"*"},
		Routes: []*routev3.Route{{
			Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
			Action: &routev3.Route_Route{Route: &routev3.RouteAction{
				ClusterSpecifier: &routev3.RouteAction_WeightedClusters{WeightedClusters: w},
			}},
		}},
	}}}
}

// EmptyRoutes returns a RouteConfiguration without virtual hosts.
func EmptyRoutes(name string) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{Name: name}
}
