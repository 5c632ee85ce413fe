package cluster

import (
	"fmt"
	"net/netip"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/traffic"
)

// nothing is the part for the empty assignment of clusters that gRPC clients
// must not reach.
type nothing struct{}

func (nothing) Make(*index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	a := &endpointv3.ClusterLoadAssignment{ClusterName: piece.BlackHoleCluster}
	return []piece.Piece{{Name: piece.BlackHoleCluster, Message: a}}, nil
}

// grpcCluster returns nil if gRPC has nothing equivalent.
func (m *maker) grpcCluster(t target) *clusterv3.Cluster {
	c := &clusterv3.Cluster{Name: t.name, CircuitBreakers: &clusterv3.CircuitBreakers{
		Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
			MaxRequests: limitOf(t.policy.Pool.GetHttp().GetHttp2MaxRequests()), // the default of gRPC is 1024
		}},
	}}
	m.grpcBalance(c, t.policy)
	encrypted := m.encrypted(t)
	if encrypted {
		c.TransportSocket = m.grpcSocket(t)
	}
	switch mode := t.policy.TLS.GetMode(); {
	case mode == networking.ClientTLSSettings_ISTIO_MUTUAL && !encrypted:
		m.cannot(m.ruleKey, t.policy.Fields.TLS, errNoProvider,
			"add a certificate provider to the bootstrap, and name it in the metadata", "such clients do not reach it")
		byEDS(c, piece.BlackHoleCluster)
	case mode != networking.ClientTLSSettings_DISABLE && mode != networking.ClientTLSSettings_ISTIO_MUTUAL:
		m.cannot(m.ruleKey, t.policy.Fields.TLS, fmt.Sprintf("gRPC clients cannot be told to use TLS of mode %s", mode),
			"use mode ISTIO_MUTUAL, or DISABLE and credentials in the client's code", "gRPC clients do not reach it")
		byEDS(c, piece.BlackHoleCluster) // do not connect without encryption (I25)
	// A client has no connection of another caller to pass through (SVC-3).
	case m.service.Resolution == index.Static, m.service.Headless:
		byEDS(c, "")
	case m.byName():
		return m.grpcResolve(c, t)
	default:
		m.cannot(m.service.Key, "spec.resolution", "gRPC clients need endpoints",
			"use resolution STATIC or DNS", "gRPC clients do not reach it")
		return nil
	}
	return c
}

// grpcResolve lets the client resolve the endpoint's name: gRPC resolves one
// name only.
func (m *maker) grpcResolve(c *clusterv3.Cluster, t target) *clusterv3.Cluster {
	names := m.endpointsOf(t, func(*index.Endpoint) bool { return true })
	if len(names) != 1 || names[0].Port == 0 {
		m.cannot(m.service.Key, "spec.endpoints",
			fmt.Sprintf("gRPC clients can resolve one name, not the %d of %s", len(names), t.name),
			"leave one of them, or use resolution STATIC", "gRPC clients do not reach it")
		return nil
	}
	setType(c, clusterv3.Cluster_LOGICAL_DNS)
	c.LoadAssignment = assignment(t.name, names, nil)
	adapt(c.LoadAssignment)
	return c
}

// grpcBalance sets the load balancing that gRPC supports; its default is round
// robin.
func (m *maker) grpcBalance(c *clusterv3.Cluster, policy traffic.Policy) {
	unsupported := func(what string) {
		m.cannot(m.ruleKey, policy.Fields.Balancer, "gRPC clients do not know "+what,
			"use ROUND_ROBIN, LEAST_REQUEST or ringHash", "gRPC clients use round robin")
	}
	if hash := policy.Balancer.GetConsistentHash(); hash != nil {
		if hash.GetMaglev() != nil {
			unsupported("maglev")
			return
		}
		c.LbPolicy = clusterv3.Cluster_RING_HASH
		if size := hash.GetRingHash().GetMinimumRingSize(); size > 0 {
			c.LbConfig = &clusterv3.Cluster_RingHashLbConfig_{RingHashLbConfig: &clusterv3.Cluster_RingHashLbConfig{
				MinimumRingSize: wrapperspb.UInt64(size),
			}}
		}
		return
	}
	switch simple := policy.Balancer.GetSimple(); simple {
	case networking.LoadBalancerSettings_LEAST_REQUEST, networking.LoadBalancerSettings_LEAST_CONN: //nolint:staticcheck // users still write it
		c.LbPolicy = clusterv3.Cluster_LEAST_REQUEST
	case networking.LoadBalancerSettings_RANDOM, networking.LoadBalancerSettings_PASSTHROUGH:
		unsupported(simple.String())
	}
}

// forGRPC reports whether gRPC clients get an endpoint: they support IPs only, and
// use unhealthy endpoints like others.
func forGRPC(e *index.Endpoint) bool {
	_, err := netip.ParseAddr(e.Address)
	return err == nil && e.Health == index.Healthy
}

// adapt changes what Envoys get: gRPC needs an identity for each locality, even
// an empty one, and does not read metadata.
func adapt(a *endpointv3.ClusterLoadAssignment) {
	for _, group := range a.GetEndpoints() {
		if group.GetLocality() == nil {
			group.Locality = &corev3.Locality{}
		}
		for _, lb := range group.GetLbEndpoints() {
			lb.Metadata = nil
		}
	}
}

// cannot reports a setting for which gRPC has no equivalent. It is informational:
// most meshes have no gRPC clients.
func (m *maker) cannot(key ident.Key, field, reason, advice, effect string) {
	m.report(problem.Diagnostic{
		Severity: problem.Info, Code: "unsupported", Key: key, Field: field, Reason: reason, Advice: advice, Effect: effect,
	})
}
