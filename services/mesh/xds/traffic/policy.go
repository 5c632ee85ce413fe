// Package traffic finds the policies of a DestinationRule and of the mesh that
// count for one cluster.
//
// It is pure.
package traffic

import (
	"cmp"
	"fmt"
	"slices"

	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
)

// Policy holds the settings for a port of a service, or for a subset of it. A
// nil group has its defaults. It shares the messages that it was made of.
type Policy struct {
	Pool          *networking.ConnectionPoolSettings
	Outliers      *networking.OutlierDetection
	Balancer      *networking.LoadBalancerSettings
	TLS           *networking.ClientTLSSettings
	ProxyProtocol *networking.TrafficPolicy_ProxyProtocol
	RetryBudget   *networking.TrafficPolicy_RetryBudget

	// Fields are the places of Balancer and TLS in the DestinationRule, for
	// Diagnostics.
	Fields Fields
}

// Fields are paths of fields of a DestinationRule; empty if it does not set the
// group.
type Fields struct{ Balancer, TLS string }

// Of returns the policy of a port without a subset (DR-5): the mesh's, replaced
// by the rule's, replaced by the rule's for the port. Both may be nil.
func Of(mesh *meshconfig.MeshConfig, rule *networking.DestinationRule, port uint32) Policy {
	base := ofMesh(mesh)
	return base.under(base, rule.GetTrafficPolicy(), "trafficPolicy", port)
}

// OfSubset returns the policy of the subset with that index: the one of the
// port without it, replaced by the subset's, replaced by the subset's for the
// port.
func OfSubset(mesh *meshconfig.MeshConfig, rule *networking.DestinationRule, subset int, port uint32) Policy {
	field := fmt.Sprintf("subsets[%d].trafficPolicy", subset)
	return Of(mesh, rule, port).under(ofMesh(mesh), rule.GetSubsets()[subset].GetTrafficPolicy(), field, port)
}

// Find is Of for the subset "", and else OfSubset for the subset with that name, or Of if the
// rule has none of that name.
func Find(mesh *meshconfig.MeshConfig, rule *networking.DestinationRule, subset string, port uint32) Policy {
	if subset != "" {
		if i := slices.IndexFunc(rule.GetSubsets(), func(s *networking.Subset) bool { return s.GetName() == subset }); i >= 0 {
			return OfSubset(mesh, rule, i, port)
		}
	}
	return Of(mesh, rule, port)
}

// ofMesh is the mesh's policy, which rules replace group by group (DR-25).
func ofMesh(mesh *meshconfig.MeshConfig) Policy {
	baseline := mesh.GetDefaultTrafficPolicy()
	return Policy{Pool: baseline.GetConnectionPool(), Outliers: baseline.GetOutlierDetection()}
}

// under returns p with the groups that t sets replaced.
func (p Policy) under(base Policy, t *networking.TrafficPolicy, field string, port uint32) Policy {
	if t == nil {
		return p
	}
	p.Pool = cmp.Or(t.GetConnectionPool(), p.Pool)
	p.Outliers = cmp.Or(t.GetOutlierDetection(), p.Outliers)
	p.ProxyProtocol = cmp.Or(t.GetProxyProtocol(), p.ProxyProtocol)
	p.RetryBudget = cmp.Or(t.GetRetryBudget(), p.RetryBudget)
	if t.GetLoadBalancer() != nil {
		p.Balancer, p.Fields.Balancer = t.GetLoadBalancer(), field+".loadBalancer"
	}
	if t.GetTls() != nil {
		p.TLS, p.Fields.TLS = t.GetTls(), field+".tls"
	}
	for i, ps := range t.GetPortLevelSettings() {
		if ps.GetPort().GetNumber() == port {
			return p.onPort(base, ps, fmt.Sprintf("%s.portLevelSettings[%d]", field, i))
		}
	}
	return p
}

// onPort returns p with all groups replaced that a port may set: groups that
// the port leaves out have their defaults.
func (p Policy) onPort(base Policy, ps *networking.TrafficPolicy_PortTrafficPolicy, field string) Policy {
	p.Pool = cmp.Or(ps.GetConnectionPool(), base.Pool)
	p.Outliers = cmp.Or(ps.GetOutlierDetection(), base.Outliers)
	p.Balancer, p.TLS = ps.GetLoadBalancer(), ps.GetTls()
	p.Fields = Fields{Balancer: field + ".loadBalancer", TLS: field + ".tls"}
	return p
}
