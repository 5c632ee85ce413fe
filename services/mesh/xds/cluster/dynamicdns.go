package cluster

import (
	"fmt"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	forwardv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dynamic_forward_proxy/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/traffic"
)

const dynamicForwardProxy = "envoy.clusters.dynamic_forward_proxy"

// resolveCalls makes c a cluster whose endpoint each call names (SE-8). Names that TLS
// needs are in the options for HTTP, as in every other cluster.
func resolveCalls(c *clusterv3.Cluster) {
	c.ClusterDiscoveryType = &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{
		Name: dynamicForwardProxy,
		TypedConfig: piece.Any(&forwardv3.ClusterConfig{
			ClusterImplementationSpecifier: &forwardv3.ClusterConfig_DnsCacheConfig{DnsCacheConfig: piece.DynamicDNS()},
			AllowInsecureClusterOptions:    true,
		}),
	}}
}

// resolvesCalls reports whether calls name the endpoints of a cluster.
func resolvesCalls(c *clusterv3.Cluster) bool {
	return c.GetClusterType().GetName() == dynamicForwardProxy
}

// callsOf makes c a cluster whose endpoint each call names, and reports what of the rule
// cannot have an effect. It reports whether there can be endpoints: those of a subset have
// labels, and these have none.
func (m *maker) callsOf(c *clusterv3.Cluster, t target) bool {
	if len(t.subset.GetLabels()) > 0 {
		m.report(problem.Diagnostic{
			Severity: problem.Warning, Code: "no-endpoints", Key: m.ruleKey, Field: "spec.subsets",
			Reason: fmt.Sprintf("calls name the endpoints of %s, so these have no labels", m.service.Hostname), Advice: "route to the host without a subset",
			Effect: "the clusters of its subsets are left out: requests get 503",
		})
		return false
	}
	if b := t.policy.Balancer; b.GetConsistentHash() != nil || b.GetLocalityLbSetting() != nil || b.GetSimple() != 0 || slowStart(b) != nil {
		m.report(problem.Diagnostic{
			Severity: problem.Warning, Code: "no-effect", Key: m.ruleKey, Field: "spec." + t.policy.Fields.Balancer,
			Reason: "each call names the endpoint of " + m.service.Hostname, Advice: "remove it", Effect: "calls go to the host that they name",
		})
	}
	resolveCalls(c)
	return true
}

// unknownHosts returns the cluster for requests to unknown hosts, whose names sidecars
// resolve (MC-3); nil if they do not.
func (m *maker) unknownHosts(c *clusterv3.Cluster) *clusterv3.Cluster {
	if !piece.ResolvesUnknown(m.mesh) {
		return nil
	}
	m.service = &index.Service{} // which names no certificates
	t := target{name: c.GetName(), port: index.Port{Protocol: index.HTTP}, policy: traffic.Policy{TLS: m.mesh.GetOutboundTrafficPolicy().GetTls()}}
	socket, err := m.transportSocket(t)
	if err != nil { // what validation refuses: nothing is sent in plain text
		setType(c, clusterv3.Cluster_STATIC)
		return c
	}
	resolveCalls(c)
	balance(c, traffic.Policy{})
	limit(c, traffic.Policy{})
	options := asCaller(nil)
	if c.TransportSocket = socket; socket != nil { // the server says which protocol it speaks
		options = &httpv3.HttpProtocolOptions{UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_AutoConfig{AutoConfig: &httpv3.HttpProtocolOptions_AutoHttpConfig{
			HttpProtocolOptions: &corev3.Http1ProtocolOptions{}, Http2ProtocolOptions: http2(nil),
		}}}
	}
	options.UpstreamHttpProtocolOptions = m.automaticNames(t.policy.TLS)
	c.TypedExtensionProtocolOptions = packOptions(options)
	return c
}
