package index

import (
	"fmt"
	"slices"
	"strings"

	security "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/table"
	"meshlog.dev/services/mesh/world"
)

// The kinds of security policies.
const (
	authorizationKind = "AuthorizationPolicy"
	requestsKind      = "RequestAuthentication"
	peersKind         = "PeerAuthentication"
)

// policyIndex holds the policies about requests by what they select (AZ-10). No
// proxy enforces them yet, so one that selects a router denies everything there
// (POL-15).
type policyIndex struct {
	bySelector table.Groups[selects, *policy]
}

// selects names workloads: those of a namespace that have these labels. A policy in
// the root namespace selects workloads of all namespaces.
type selects struct{ namespace, labels string }

type policy struct {
	ident.Key
	labels map[string]string
}

// MemberKey returns the key of the policy.
func (p *policy) MemberKey() ident.Key { return p.Key }

// The labels by which the implementations of Gateway API name the Gateway and the
// class of a workload.
const (
	gatewayNameLabel  = "gateway.networking.k8s.io/gateway-name"
	gatewayClassLabel = "gateway.networking.k8s.io/gateway-class-name"
)

// newPolicies returns the policies that an object makes: one for each of its
// targets, or one for its selector.
func newPolicies(o world.Object) []*policy {
	var labels map[string]string
	var targets []*typev1beta1.PolicyTargetReference
	switch m := o.Message.(type) {
	case *registryv1.Closed:
		labels = m.GetMatchLabels()
		for _, t := range m.GetTargets() {
			targets = append(targets, &typev1beta1.PolicyTargetReference{Kind: t.GetKind(), Name: t.GetName()})
		}
	case *security.AuthorizationPolicy:
		labels, targets = m.GetSelector().GetMatchLabels(), kind.Targets(m)
	case *security.RequestAuthentication:
		labels, targets = m.GetSelector().GetMatchLabels(), kind.Targets(m)
	}
	if o.Key.Kind == peersKind { // it is about connections of sidecars
		return nil
	}
	if len(targets) == 0 {
		return []*policy{{o.Key, labels}}
	}
	var all []*policy
	for _, t := range targets {
		switch t.GetKind() {
		case "Gateway":
			all = append(all, &policy{o.Key, map[string]string{gatewayNameLabel: t.GetName()}})
		case "GatewayClass":
			all = append(all, &policy{o.Key, map[string]string{gatewayClassLabel: t.GetName()}})
		case "Service", "ServiceEntry": // of waypoints, which do not exist here (POL-14)
		default: // it may select any workload
			all = append(all, &policy{o.Key, nil})
		}
	}
	return all
}

// next returns the index after changes of policies.
func (x policyIndex) next(t *transition, changes []change) policyIndex {
	edit := x.bySelector.Edit(func(a, b *policy) int { return strings.Compare(a.Row(), b.Row()) })
	for _, c := range changes {
		for o, after := range c.versions() {
			for _, p := range newPolicies(*o) {
				edit.Keep(selects{p.Namespace, selectorText(p.labels)}, p, after)
			}
		}
		var ds []problem.Diagnostic
		if c.is != nil {
			ds = t.unenforced(*c.is)
		}
		t.problem(about{"policy", "", c.Row()}, ds)
	}
	next := policyIndex{edit.Done()}
	for group := range edit.Moved {
		t.reclassify(len(x.bySelector.Get(group)) != len(next.bySelector.Get(group)))
	}
	return next
}

// denies reports whether a policy that no proxy enforces selects p.
func (x *policyIndex) denies(s *settings, p *proxy.Proxy) bool {
	if s.allowUnenforced {
		return false
	}
	for group, policies := range x.bySelector.All() {
		if (group.namespace == p.Namespace || group.namespace == s.rootNamespace) && matchLabels(policies[0].labels, p.Labels) {
			return true
		}
	}
	return false
}

// mayDeny reports whether a policy that no proxy enforces may select proxies.
func (x *policyIndex) mayDeny(s *settings) bool { return !s.allowUnenforced && x.bySelector.Len() > 0 }

// unenforced reports a policy that no proxy enforces.
func (t *transition) unenforced(o world.Object) []problem.Diagnostic {
	d := problem.Diagnostic{
		Severity: problem.Error, Code: problem.Unenforced, Key: o.Key,
		Reason: fmt.Sprintf("the %s is not enforced: no proxy is told of it yet", o.Key.Kind),
		Advice: "protect the workloads by other means",
	}
	if o.Key.Kind == peersKind {
		if m, is := o.Message.(*security.PeerAuthentication); is && !strict(m) {
			return []problem.Diagnostic{{
				Severity: problem.Warning, Code: "not-yet", Key: o.Key,
				Reason: "sidecars have no inbound listeners yet", Advice: "nothing is to be done; do not rely on it", Effect: "the PeerAuthentication has no effect",
			}}
		}
		d.Effect = "workloads accept connections without TLS"
		return []problem.Diagnostic{d}
	}
	if t.allowUnenforced {
		d.Effect = "what it forbids is allowed, as unenforced: allow of the MeshPolicy says"
		return []problem.Diagnostic{d}
	}
	if len(newPolicies(o)) == 0 { // POL-14
		d.Field, d.Reason = "spec.targetRefs", "the policy is for waypoints, and meshlog serves none"
		d.Effect = "what it forbids is allowed"
		return []problem.Diagnostic{d}
	}
	d.Advice += ", or say unenforced: allow in the MeshPolicy to let requests through routers"
	d.Effect = "routers that it selects answer every request with 403 and close TCP connections; at other workloads what it forbids is allowed"
	return []problem.Diagnostic{d}
}

// strict reports whether a PeerAuthentication demands TLS somewhere.
func strict(m *security.PeerAuthentication) bool {
	modes := []*security.PeerAuthentication_MutualTLS{m.GetMtls()}
	for _, port := range m.GetPortLevelMtls() {
		modes = append(modes, port)
	}
	return slices.ContainsFunc(modes, func(m *security.PeerAuthentication_MutualTLS) bool {
		return m.GetMode() == security.PeerAuthentication_MutualTLS_STRICT
	})
}
