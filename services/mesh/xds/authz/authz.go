// Package authz translates the AuthorizationPolicies that select a workload into
// Envoy's RBAC filters, one for each action (AZ-1).
//
// A condition that a filter cannot decide never makes the result more permissive:
// with ALLOW its rule is dropped, with every other action only the condition, so the
// rule matches more (AZ-7). For the same reason identities match narrowly where a
// match lets a request through, and widely where it forbids one (POL-5).
//
// It is pure.
package authz

import (
	"fmt"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	networkv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	security "istio.io/api/security/v1beta1"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/world"
)

// CustomPrefix is the prefix of the metadata that the filter of CUSTOM policies
// writes: CustomPrefix + "shadow_engine_result" is "denied" if one of them matches.
const CustomPrefix = "istio_ext_authz_"

// The prefixes of the statistics and metadata of dry runs (AZ-8).
const (
	dryDenyPrefix  = "istio_dry_run_deny_"
	dryAllowPrefix = "istio_dry_run_allow_"
)

// tcpPrefix is the prefix of the statistics of network filters.
const tcpPrefix = "tcp."

// Options say for which mesh and which Envoys policies are translated.
type Options struct {
	// TrustDomains are the trust domain of the mesh and its aliases.
	TrustDomains []string
	// LocalApart: cluster.local, which otherwise stands for the mesh's own trust domain, is
	// another one, with roots of its own (CA-13).
	LocalApart bool
	// PrincipalNames is for Envoys without envoy.rbac.principals.mtls_authenticated.
	// Their matchers also see the DNS names and the subject of a certificate (S27).
	PrincipalNames bool
	// MaxRegex is the size of the largest expression that the Envoys take, such as
	// re2.Stock. A condition with a larger one cannot be decided.
	MaxRegex int
	// Only is the filter that is wanted: the others are nil then. Zero: all of them.
	Only Filter
}

// Filter is one of the filters.
type Filter int

// The filters of Options.Only.
const (
	Custom Filter = iota + 1
	Audit
	Deny
	Allow
)

func (o Options) wants(f Filter) bool { return o.Only == 0 || o.Only == f }

// HTTP holds the filters of HTTP requests, in the order in which they run. A filter is
// nil if no policy has its action.
type HTTP struct{ Custom, Audit, Deny, Allow *httpv3.RBAC }

// TCP holds the filters of connections, like HTTP.
type TCP struct{ Custom, Audit, Deny, Allow *networkv3.RBAC }

// ForHTTP translates policies for the requests of a workload that they select.
func ForHTTP(policies []world.Object, o Options) HTTP {
	r := translate(policies, o, false)
	filter := func(enforced, dry *rbacv3.RBAC, prefix string) *httpv3.RBAC {
		if enforced == nil && dry == nil {
			return nil
		}
		f := &httpv3.RBAC{Rules: enforced}
		if dry != nil {
			f.ShadowRules, f.ShadowRulesStatPrefix = dry, prefix
		}
		return f
	}
	return HTTP{
		Custom: filter(nil, r.custom, CustomPrefix), Audit: filter(r.audit, nil, ""),
		Deny: filter(r.deny, r.dryDeny, dryDenyPrefix), Allow: filter(r.allow, r.dryAllow, dryAllowPrefix),
	}
}

// ForTCP translates policies for the connections of a workload that they select.
func ForTCP(policies []world.Object, o Options) TCP {
	r := translate(policies, o, true)
	filter := func(enforced, dry *rbacv3.RBAC, prefix string) *networkv3.RBAC {
		if enforced == nil && dry == nil {
			return nil
		}
		f := &networkv3.RBAC{Rules: enforced, StatPrefix: tcpPrefix}
		if dry != nil {
			f.ShadowRules, f.ShadowRulesStatPrefix = dry, prefix
		}
		return f
	}
	return TCP{
		Custom: filter(nil, r.custom, CustomPrefix), Audit: filter(r.audit, nil, ""),
		Deny: filter(r.deny, r.dryDeny, dryDenyPrefix), Allow: filter(r.allow, r.dryAllow, dryAllowPrefix),
	}
}

// rules are the rules of each action; nil: there is no policy. Those of dry runs decide
// nothing (AZ-8).
type rules struct{ custom, audit, deny, allow, dryDeny, dryAllow *rbacv3.RBAC }

func translate(policies []world.Object, o Options, tcp bool) rules {
	var all rules
	for _, p := range policies {
		m, ok := p.Message.(*security.AuthorizationPolicy)
		if dry, is := p.Message.(*kind.DryRun); is && !dry.Enforced() {
			all.dryRun(p.Key, dry.Inner, o, tcp)
			continue
		} else if is {
			m, ok = dry.Inner, true
		}
		if !ok { // a registry.v1.Closed: no value of the policy was ever good
			all.close(p, o)
			continue
		}
		var slot **rbacv3.RBAC
		action, filter := rbacv3.RBAC_DENY, Deny
		switch m.GetAction() {
		case security.AuthorizationPolicy_ALLOW:
			slot, action, filter = &all.allow, rbacv3.RBAC_ALLOW, Allow
		case security.AuthorizationPolicy_DENY:
			slot = &all.deny
		case security.AuthorizationPolicy_AUDIT:
			slot, action, filter = &all.audit, rbacv3.RBAC_LOG, Audit
		case security.AuthorizationPolicy_CUSTOM:
			slot, filter = &all.custom, Custom
		default:
			all.close(p, o)
			continue
		}
		if !o.wants(filter) {
			continue
		}
		t := translator{Options: o, tcp: tcp, allow: slot == &all.allow, namespace: p.Key.Namespace}
		t.add(policiesOf(slot, action), p.Key, m)
	}
	return all
}

// dryRun adds a policy that is evaluated, and not enforced.
func (r *rules) dryRun(k ident.Key, m *security.AuthorizationPolicy, o Options, tcp bool) {
	slot, action, filter := &r.dryDeny, rbacv3.RBAC_DENY, Deny
	if m.GetAction() == security.AuthorizationPolicy_ALLOW {
		slot, action, filter = &r.dryAllow, rbacv3.RBAC_ALLOW, Allow
	}
	if !o.wants(filter) {
		return
	}
	t := translator{Options: o, tcp: tcp, allow: action == rbacv3.RBAC_ALLOW, namespace: k.Namespace}
	t.add(policiesOf(slot, action), k, m)
}

// add adds the rules of a policy.
func (t translator) add(into map[string]*rbacv3.Policy, k ident.Key, m *security.AuthorizationPolicy) {
	for i, r := range m.GetRules() {
		if policy, ok := t.rule(r); ok {
			into[fmt.Sprintf("ns[%s]-policy[%s]-rule[%d]", k.Namespace, k.Name, i)] = policy
		}
	}
}

// policiesOf returns the policies of an action, to which the caller adds. Without any,
// ALLOW denies all requests (POL-9).
func policiesOf(slot **rbacv3.RBAC, action rbacv3.RBAC_Action) map[string]*rbacv3.Policy {
	if *slot == nil {
		*slot = &rbacv3.RBAC{Action: action, Policies: map[string]*rbacv3.Policy{}}
	}
	return (*slot).GetPolicies()
}

// close denies everything, and names the policy in the details of the response
// (POL-15).
func (r *rules) close(p world.Object, o Options) {
	if !o.wants(Deny) {
		return
	}
	policiesOf(&r.deny, rbacv3.RBAC_DENY)["invalid:"+p.Key.Namespace+"/"+p.Key.Name] = &rbacv3.Policy{
		Permissions: []*rbacv3.Permission{operations.any()}, Principals: []*rbacv3.Principal{callers.any()},
	}
}
