package cluster

import (
	"fmt"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/internal/model"
)

// dnsJitter spreads the queries of many proxies.
const dnsJitter = 100 * time.Millisecond

// resolve makes c one whose endpoints are names (SE-6, SE-7, DR-28), which come
// with it. It says whether there are any: Envoy would not take it without.
func (m *maker) resolve(c *clusterv3.Cluster, t clusterv3.Cluster_DiscoveryType, port model.Port, subset *networking.Subset) bool {
	var names []model.Endpoint
	for _, e := range m.endpoints[port.Number] {
		if hasLabels(e.Labels, subset.GetLabels()) && !strings.HasPrefix(e.Address, unixScheme) {
			names = append(names, e)
		}
	}
	if len(names) == 0 {
		m.report(model.Diagnostic{
			Severity: model.Warning, Code: "no-endpoints", Field: "spec.endpoints",
			Reason: fmt.Sprintf("%s has no names to resolve", c.GetName()), Advice: "add endpoints",
			Effect: "the cluster is left out: requests get 503",
		})
		return false
	}
	if t == clusterv3.Cluster_LOGICAL_DNS && len(names) > 1 {
		m.report(model.Diagnostic{
			Severity: model.Warning, Code: "invalid", Field: "spec.endpoints",
			Reason: "with resolution DNS_ROUND_ROBIN there can be one endpoint only", Advice: "use resolution DNS, or remove the others",
			Effect: fmt.Sprintf("only %s is used", names[0].Address),
		})
		names = names[:1]
	}
	setType(c, t)
	c.LoadAssignment = Assignment(c.GetName(), names)
	// The newer extension envoy.clusters.dns has the same settings, but not
	// in every Envoy that is supported.
	c.DnsLookupFamily = clusterv3.Cluster_V4_PREFERRED
	c.RespectDnsTtl = true                        //nolint:staticcheck // see above
	c.DnsJitter = durationpb.New(dnsJitter)       //nolint:staticcheck // see above
	c.DnsRefreshRate = m.mesh.GetDnsRefreshRate() //nolint:staticcheck // see above
	return true
}
