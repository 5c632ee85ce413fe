package index

import (
	"slices"

	networking "istio.io/api/networking/v1alpha3"
)

// ConnectionRule returns the DestinationRules that count for a host in a scope if they
// say something about connections without requests, which Listeners hold: how long
// connections last (DR-6), or that the caller's address chooses the endpoint (DR-11).
// Otherwise it returns the zero RuleID, and a Listener does not depend on them. Most
// meshes have no such rule, and then it looks at none.
func (r *Reader) ConnectionRule(s Scope, serviceNamespace, host string) RuleID {
	r.note(Input{Kind: InputConnectionRules})
	if !r.pc.rules.shapeConnections() {
		return RuleID{}
	}
	id, ok := r.Rule(s, serviceNamespace, host)
	if !ok || !slices.Contains(r.pc.rules.connections.Get(ruleHost{id.Namespace, id.Host}), id) {
		return RuleID{}
	}
	return id
}

// shapeConnections reports whether a rule says something about connections, so that
// Listeners depend on the rules that a proxy sees.
func (x *ruleIndex) shapeConnections() bool { return x.connections.Len() > 0 }

// shaping returns those of merged rules that say something about connections.
func shaping(merged []*mergedRule) []RuleID {
	var all []RuleID
	for _, m := range merged {
		if shapesConnections(m.spec) {
			all = append(all, m.id)
		}
	}
	return all
}

// connectionPolicy is the part of a policy that connections depend on.
type connectionPolicy interface {
	GetConnectionPool() *networking.ConnectionPoolSettings
	GetLoadBalancer() *networking.LoadBalancerSettings
}

// shapesConnections reports whether a policy of a rule says something about connections.
func shapesConnections(rule *networking.DestinationRule) bool {
	return slices.ContainsFunc(policiesOf(rule), func(p endpointPolicy) bool {
		tcp := p.GetConnectionPool().GetTcp()
		return tcp.GetIdleTimeout() != nil || tcp.GetMaxConnectionDuration() != nil || p.GetLoadBalancer().GetConsistentHash().GetUseSourceIp()
	})
}
