package traffic_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/xds/traffic"
)

func maxConnections(n int32) *networking.ConnectionPoolSettings {
	return &networking.ConnectionPoolSettings{Tcp: &networking.ConnectionPoolSettings_TCPSettings{MaxConnections: n}}
}

func onPort(number uint32, pool *networking.ConnectionPoolSettings) []*networking.TrafficPolicy_PortTrafficPolicy {
	return []*networking.TrafficPolicy_PortTrafficPolicy{{Port: &networking.PortSelector{Number: number}, ConnectionPool: pool}}
}

// Each level replaces the one before it and names its place in the rule (DR-5,
// DR-25).
func TestDR5Levels(t *testing.T) {
	mesh := &meshconfig.MeshConfig{DefaultTrafficPolicy: &meshconfig.MeshConfig_DefaultTrafficPolicy{ConnectionPool: maxConnections(1)}}
	balancer := &networking.LoadBalancerSettings{}
	tls := &networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_SIMPLE}
	rule := &networking.DestinationRule{
		TrafficPolicy: &networking.TrafficPolicy{
			ConnectionPool: maxConnections(2), LoadBalancer: balancer, Tls: tls,
			PortLevelSettings: append(onPort(81, maxConnections(3)), onPort(82, nil)...),
		},
		Subsets: []*networking.Subset{
			{Name: "silent"},
			{Name: "speaks", TrafficPolicy: &networking.TrafficPolicy{
				ConnectionPool: maxConnections(4), LoadBalancer: balancer, PortLevelSettings: onPort(81, maxConnections(5)),
			}},
		},
	}
	const inPort, inSubset = "trafficPolicy.portLevelSettings[0]", "subsets[1].trafficPolicy"
	for name, test := range map[string]struct {
		got   traffic.Policy
		max   int32
		field string
		tls   bool
	}{
		"mesh":                      {traffic.Of(mesh, nil, 80), 1, "", false},
		"rule":                      {traffic.Of(mesh, rule, 80), 2, "trafficPolicy.loadBalancer", true},
		"port":                      {traffic.Of(mesh, rule, 81), 3, inPort + ".loadBalancer", false},
		"port without settings":     {traffic.Of(mesh, rule, 82), 1, "trafficPolicy.portLevelSettings[1].loadBalancer", false},
		"subset without policy":     {traffic.OfSubset(mesh, rule, 0, 81), 3, inPort + ".loadBalancer", false},
		"subset":                    {traffic.OfSubset(mesh, rule, 1, 80), 4, inSubset + ".loadBalancer", true},
		"subset on its port":        {traffic.OfSubset(mesh, rule, 1, 81), 5, inSubset + ".portLevelSettings[0].loadBalancer", false},
		"subset over a port's mesh": {traffic.OfSubset(mesh, rule, 1, 82), 4, inSubset + ".loadBalancer", false},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.max, test.got.Pool.GetTcp().GetMaxConnections()); diff != "" {
				t.Errorf("maxConnections (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.field, test.got.Fields.Balancer); diff != "" {
				t.Errorf("field (-want +got):\n%s", diff)
			}
			if got := test.got.TLS != nil; got != test.tls {
				t.Errorf("TLS is set: %t, want %t", got, test.tls)
			}
		})
	}
}
