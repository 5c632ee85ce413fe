package cluster

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
)

// keepSessions lets c go on with the sessions that are bound to an endpoint while it drains
// (SVC-15).
func (m *maker) keepSessions(c *clusterv3.Cluster, t target) {
	if !piece.TakesRequests(t.port.Protocol) {
		return
	}
	m.reportSessions()
	if !m.service.Sticky() || c.GetCommonLbConfig() == nil {
		return
	}
	c.CommonLbConfig.OverrideHostStatus = &corev3.HealthStatusSet{Statuses: []corev3.HealthStatus{
		corev3.HealthStatus_UNKNOWN, corev3.HealthStatus_HEALTHY, corev3.HealthStatus_DRAINING, corev3.HealthStatus_DEGRADED,
	}}
}

// reportSessions reports labels about sessions that cannot have an effect.
func (m *maker) reportSessions() {
	cookie, header := m.service.Labels[index.SessionLabel], m.service.Labels[index.SessionHeaderLabel]
	report := func(label, reason, advice, effect string) {
		m.report(problem.Diagnostic{
			Severity: problem.Warning, Code: "no-effect", Key: m.service.Key, Field: "metadata.labels[" + label + "]",
			Reason: reason, Advice: advice, Effect: effect,
		})
	}
	const unbound = "clients of the service do not stay with one endpoint"
	switch passed := m.service.Resolution != index.Static || m.service.Headless && !m.router; {
	case cookie == "" && header == "":
	case !m.service.Sticky() && cookie != "":
		report(index.SessionLabel, cookie+" names no cookie", "write NAME or NAME:/PATH", unbound)
	case !m.service.Sticky():
		report(index.SessionHeaderLabel, header+" names no header", "write the name of a header", unbound)
	case passed && cookie != "":
		report(index.SessionLabel, "the addresses of endpoints are not known", "give the service endpoints with addresses", unbound)
	case passed:
		report(index.SessionHeaderLabel, "the addresses of endpoints are not known", "give the service endpoints with addresses", unbound)
	case cookie != "" && header != "":
		report(index.SessionHeaderLabel, "the service has the label "+index.SessionLabel+" too", "remove one of them", "the cookie decides")
	}
}
