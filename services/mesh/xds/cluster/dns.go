package cluster

import (
	"fmt"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	lookupv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/common/dns/v3"
	dnsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dns/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
)

// dnsJitter spreads the queries of many proxies.
const dnsJitter = 100 * time.Millisecond

// resolve makes c a DNS cluster, which contains its endpoints (SE-6, SE-7,
// DR-28). It reports whether there are any: without endpoints the cluster is
// left out.
//
// The types STRICT_DNS and LOGICAL_DNS would do the same, but Envoy warns of
// their settings and will remove them.
func (m *maker) resolve(c *clusterv3.Cluster, t target) bool {
	roundRobin := m.service.Resolution == index.DNSRoundRobin
	named := func(e *index.Endpoint) bool { return !strings.HasPrefix(e.Address, unixScheme) }
	names := m.endpointsOf(t, named)
	if len(names) == 0 && m.has(t, named) {
		return false // all refuse this client, which is reported (MTLS-16)
	}
	if len(names) == 0 {
		m.report(problem.Diagnostic{
			Severity: problem.Warning, Code: "no-endpoints", Key: m.service.Key, Field: "spec.endpoints",
			Reason: fmt.Sprintf("%s has no names to resolve", c.GetName()), Advice: "add endpoints",
			Effect: "the cluster is left out: requests get 503",
		})
		return false
	}
	if roundRobin {
		names = names[:1] // several ServiceEntries of the host may each name one
	}
	c.ClusterDiscoveryType = &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{
		Name: "envoy.clusters.dns",
		TypedConfig: piece.Any(&dnsv3.DnsCluster{
			DnsRefreshRate:               positive(m.mesh.GetDnsRefreshRate()),
			RespectDnsTtl:                true,
			DnsJitter:                    durationpb.New(dnsJitter),
			DnsLookupFamily:              lookupv3.DnsLookupFamily_V4_PREFERRED,
			AllAddressesInSingleEndpoint: roundRobin,
		}),
	}}
	c.LoadAssignment = assignment(c.GetName(), names, nil)
	return true
}
