package kind_test

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/services/mesh/kind/validate"
)

func TestCheckEnvoy(t *testing.T) {
	endpoints := func(address string) proto.Message {
		return &endpointv3.ClusterLoadAssignment{ClusterName: "a", Endpoints: []*endpointv3.LocalityLbEndpoints{{
			LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
				Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
					Address: address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 80},
				}}},
			}}}},
		}}}
	}
	for name, test := range map[string]struct {
		message proto.Message
		want    string // field of the first problem
	}{
		"good":                   {endpoints("10.0.0.1"), ""},
		"found late":             {endpoints("name"), "ClusterLoadAssignment.endpoints[0].lb_endpoints[0].endpoint.address.socket_address.address"},
		"by its own validation":  {&endpointv3.ClusterLoadAssignment{}, "ClusterLoadAssignment.cluster_name"},
		"a part of a resource":   {&routev3.RouteConfiguration{VirtualHosts: []*routev3.VirtualHost{{Name: "a", Domains: []string{"a"}}}}, ""},
		"a bad part of resource": {&routev3.RouteConfiguration{VirtualHosts: []*routev3.VirtualHost{{Domains: []string{"a"}}}}, "RouteConfiguration.virtual_hosts[0].name"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if problems := validate.CheckEnvoy(test.message); len(problems) > 0 {
				got = problems[0].Field
			}
			if got != test.want {
				t.Errorf("the first problem is in field %q, want %q", got, test.want)
			}
		})
	}
}
