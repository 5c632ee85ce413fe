package index

import (
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

// policyIndex holds the policies about requests by what they select (AZ-10).
type policyIndex struct {
	bySelector table.Groups[selects, *policy]
}

// selects names workloads: those of a namespace that have these labels. A policy in
// the root namespace selects workloads of all namespaces, unless it is local: its target
// is a Gateway, which is in the namespace of the policy.
type selects struct {
	namespace, labels string
	local             bool
}

// text returns the text of a group in a class.
func (s selects) text() string {
	if s.local {
		return s.namespace + "//" + s.labels // no label begins with a slash
	}
	return s.namespace + "/" + s.labels
}

// selectsOf returns the group of a text.
func selectsOf(text string) selects {
	namespace, labels, _ := strings.Cut(text, "/")
	labels, local := strings.CutPrefix(labels, "/")
	return selects{namespace, labels, local}
}

// in reports whether workloads of a namespace can be among those.
func (s selects) in(namespace, root string) bool {
	return s.namespace == namespace || s.namespace == root && !s.local
}

// policy is an object with one of the things that it selects.
type policy struct {
	*world.Object
	labels map[string]string
	local  bool // as in selects
}

func (p *policy) selects() selects {
	return selects{p.Key.Namespace, selectorText(p.labels), p.local}
}

// MemberKey returns the key of the policy.
func (p *policy) MemberKey() ident.Key { return p.Key }

func (p *policy) same(o *policy) bool { return p.Key == o.Key && sameMessage(p.Message, o.Message) }

// The labels by which the implementations of Gateway API name the Gateway and the
// class of a workload.
const (
	gatewayNameLabel  = "gateway.networking.k8s.io/gateway-name"
	gatewayClassLabel = "gateway.networking.k8s.io/gateway-class-name"
)

// newPolicies returns the policies that an object makes: one for each of its
// targets, or one for its selector.
func newPolicies(o *world.Object) []*policy {
	o = effective(o)
	var labels map[string]string
	var targets []*typev1beta1.PolicyTargetReference
	switch m := o.Message.(type) {
	case *registryv1.Closed:
		labels = m.GetMatchLabels()
		for _, t := range m.GetTargets() {
			targets = append(targets, &typev1beta1.PolicyTargetReference{Kind: t.GetKind(), Name: t.GetName()})
		}
	case *kind.DryRun:
		labels, targets = m.Inner.GetSelector().GetMatchLabels(), kind.Targets(m.Inner)
	case *security.AuthorizationPolicy:
		labels, targets = m.GetSelector().GetMatchLabels(), kind.Targets(m)
	case *security.RequestAuthentication:
		labels, targets = m.GetSelector().GetMatchLabels(), kind.Targets(m)
	case *kind.ProxyKeys:
		labels, targets = m.Inner.GetSelector().GetMatchLabels(), kind.Targets(m.Inner)
	}
	if len(targets) == 0 {
		return []*policy{{Object: o, labels: labels}}
	}
	var all []*policy
	for _, t := range targets {
		switch t.GetKind() {
		case "Gateway":
			all = append(all, &policy{Object: o, labels: map[string]string{gatewayNameLabel: t.GetName()}, local: true})
		case "GatewayClass":
			all = append(all, &policy{Object: o, labels: map[string]string{gatewayClassLabel: t.GetName()}})
		case "Service", "ServiceEntry": // of waypoints, which do not exist here (POL-14)
		default: // it may select any workload
			all = append(all, &policy{Object: o})
		}
	}
	return all
}

// effective returns an object whose message is a kind.DryRun only if it is evaluated and
// not enforced.
func effective(o *world.Object) *world.Object {
	d, ok := o.Message.(*kind.DryRun)
	if !ok || !d.Enforced() {
		return o
	}
	enforced := *o
	enforced.Message = d.Inner
	return &enforced
}

// next returns the index after changes of policies.
func (x policyIndex) next(t *transition, changes []change) policyIndex {
	edit := x.bySelector.Edit(func(a, b *policy) int { return strings.Compare(a.Key.Row(), b.Key.Row()) })
	for _, c := range changes {
		for o, after := range c.versions() {
			for _, p := range newPolicies(o) {
				edit.Keep(p.selects(), p, after)
			}
		}
		var ds []problem.Diagnostic
		if c.is != nil {
			ds = unenforced(c.is)
		}
		t.problem(about{"policy", "", c.Row()}, ds)
	}
	next := policyIndex{edit.Done()}
	for group := range edit.Moved {
		was, is := x.bySelector.Get(group), next.bySelector.Get(group)
		if !slices.EqualFunc(was, is, (*policy).same) {
			t.changed(Input{Kind: InputPolicies, A: group.text()})
			t.reclassify((len(was) == 0) != (len(is) == 0) || authorizes(was) != authorizes(is) || asks(was) != asks(is) || fetches(was) != fetches(is))
		}
	}
	return next
}

// selected returns the selectors of policies that match p: those of its namespace and of
// the root namespace. Those with an AuthorizationPolicy are also in authorization.
func (x *policyIndex) selected(s *settings, p *proxy.Proxy) (all, authorization SelectorSet) {
	var texts, some []string
	for group, policies := range x.bySelector.All() {
		if group.in(p.Namespace, s.rootNamespace) && matchLabels(policies[0].labels, p.Labels) {
			texts = append(texts, group.text())
			if authorizes(policies) {
				some = append(some, group.text())
			}
		}
	}
	return setOf(texts), setOf(some)
}

// authorizes reports whether one of the policies is an AuthorizationPolicy.
func authorizes(policies []*policy) bool {
	return slices.ContainsFunc(policies, func(p *policy) bool { return p.Key.Kind == authorizationKind })
}

// Policies returns the AuthorizationPolicies and RequestAuthentications of a selector in
// ECDSClass.Selected, sorted by their keys. The message of one that was
// never good is a registry.v1.Closed, that of a dry run a kind.DryRun (AZ-8), that of keys
// which proxies fetch a kind.ProxyKeys (POL-13).
func (r *Reader) Policies(selector string) []*world.Object {
	r.note(Input{Kind: InputPolicies, A: selector})
	policies := r.pc.policies.bySelector.Get(selectsOf(selector))
	all := make([]*world.Object, len(policies))
	for i, p := range policies {
		all[i] = p.Object
	}
	return all
}

// unenforced reports a policy that no proxy enforces (POL-14).
func unenforced(o *world.Object) []problem.Diagnostic {
	if len(newPolicies(o)) > 0 {
		return nil
	}
	return []problem.Diagnostic{{
		Severity: problem.Error, Code: problem.Unenforced, Key: o.Key, Field: "spec.targetRefs",
		Reason: "the policy is for waypoints, and meshlog serves none", Advice: "protect the workloads by a policy with a selector",
		Effect: "what it forbids is allowed",
	}}
}
