// Package traffic says which of the policies of a DestinationRule and of the
// mesh count for one cluster.
//
// It is pure.
package traffic

import (
	"fmt"

	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
)

// Policy is what counts for a port of a service, or for a subset of it. What
// is nil has the defaults. It shares the messages that it was made of.
type Policy struct {
	Pool          *networking.ConnectionPoolSettings
	Outliers      *networking.OutlierDetection
	Balancer      *networking.LoadBalancerSettings
	TLS           *networking.ClientTLSSettings
	ProxyProtocol *networking.TrafficPolicy_ProxyProtocol
	RetryBudget   *networking.TrafficPolicy_RetryBudget
	Tunnel        *networking.TrafficPolicy_TunnelSettings

	// Fields are where in the DestinationRule the groups stand, for people.
	Fields Fields
}

// Fields are paths of fields of a DestinationRule; empty where it does not say
// that group.
type Fields struct{ Pool, Outliers, Balancer, TLS, Tunnel string }

// Of is what counts for a port without a subset (DR-5): what the mesh says,
// over it what the rule says, over that what it says of the port. Both may be
// nil.
func Of(mesh *meshconfig.MeshConfig, rule *networking.DestinationRule, port uint32) Policy {
	base := ofMesh(mesh)
	return base.under(base, rule.GetTrafficPolicy(), "trafficPolicy", port)
}

// OfSubset is what counts for the subset of that index: what counts without
// it, over that what the subset says, over that what it says of the port.
func OfSubset(mesh *meshconfig.MeshConfig, rule *networking.DestinationRule, subset int, port uint32) Policy {
	field := fmt.Sprintf("subsets[%d].trafficPolicy", subset)
	return Of(mesh, rule, port).under(ofMesh(mesh), rule.GetSubsets()[subset].GetTrafficPolicy(), field, port)
}

// ofMesh is the baseline, which rules replace group by group (DR-25).
func ofMesh(mesh *meshconfig.MeshConfig) Policy {
	baseline := mesh.GetDefaultTrafficPolicy()
	return Policy{Pool: baseline.GetConnectionPool(), Outliers: baseline.GetOutlierDetection()}
}

// under is p with what t says in its place.
func (p Policy) under(base Policy, t *networking.TrafficPolicy, field string, port uint32) Policy {
	if t == nil {
		return p
	}
	if t.GetConnectionPool() != nil {
		p.Pool, p.Fields.Pool = t.GetConnectionPool(), field+".connectionPool"
	}
	if t.GetOutlierDetection() != nil {
		p.Outliers, p.Fields.Outliers = t.GetOutlierDetection(), field+".outlierDetection"
	}
	if t.GetLoadBalancer() != nil {
		p.Balancer, p.Fields.Balancer = t.GetLoadBalancer(), field+".loadBalancer"
	}
	if t.GetTls() != nil {
		p.TLS, p.Fields.TLS = t.GetTls(), field+".tls"
	}
	if t.GetTunnel() != nil {
		p.Tunnel, p.Fields.Tunnel = t.GetTunnel(), field+".tunnel"
	}
	if t.GetProxyProtocol() != nil {
		p.ProxyProtocol = t.GetProxyProtocol()
	}
	if t.GetRetryBudget() != nil {
		p.RetryBudget = t.GetRetryBudget()
	}
	for i, ps := range t.GetPortLevelSettings() {
		if ps.GetPort().GetNumber() == port {
			return p.onPort(base, ps, fmt.Sprintf("%s.portLevelSettings[%d]", field, i))
		}
	}
	return p
}

// onPort is p with the groups that a port may set replaced, all of them: those
// that the port leaves out have their defaults.
func (p Policy) onPort(base Policy, ps *networking.TrafficPolicy_PortTrafficPolicy, field string) Policy {
	p.Pool, p.Outliers, p.Balancer, p.TLS = base.Pool, base.Outliers, ps.GetLoadBalancer(), ps.GetTls()
	p.Fields = Fields{
		Pool: field + ".connectionPool", Outliers: field + ".outlierDetection",
		Balancer: field + ".loadBalancer", TLS: field + ".tls", Tunnel: p.Fields.Tunnel,
	}
	if ps.GetConnectionPool() != nil {
		p.Pool = ps.GetConnectionPool()
	}
	if ps.GetOutlierDetection() != nil {
		p.Outliers = ps.GetOutlierDetection()
	}
	return p
}
