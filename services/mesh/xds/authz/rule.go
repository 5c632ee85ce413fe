package authz

import (
	"strings"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	security "istio.io/api/security/v1beta1"
)

// translator translates the rules of one policy.
type translator struct {
	Options
	tcp       bool
	allow     bool   // a match lets the request through
	namespace string // of the policy
}

// terms combines terms of one type.
type terms[T any] struct {
	all, some func([]T) T
	not       func(T) T
	any       func() T
}

// callers combines terms about the caller and the request.
var callers = terms[*rbacv3.Principal]{
	all: func(ids []*rbacv3.Principal) *rbacv3.Principal {
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_AndIds{AndIds: &rbacv3.Principal_Set{Ids: ids}}}
	},
	some: func(ids []*rbacv3.Principal) *rbacv3.Principal {
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_OrIds{OrIds: &rbacv3.Principal_Set{Ids: ids}}}
	},
	not: func(id *rbacv3.Principal) *rbacv3.Principal {
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_NotId{NotId: id}}
	},
	any: func() *rbacv3.Principal { return &rbacv3.Principal{Identifier: &rbacv3.Principal_Any{Any: true}} },
}

// operations combines terms about the operation.
var operations = terms[*rbacv3.Permission]{
	all: func(rules []*rbacv3.Permission) *rbacv3.Permission {
		return &rbacv3.Permission{Rule: &rbacv3.Permission_AndRules{AndRules: &rbacv3.Permission_Set{Rules: rules}}}
	},
	some: func(rules []*rbacv3.Permission) *rbacv3.Permission {
		return &rbacv3.Permission{Rule: &rbacv3.Permission_OrRules{OrRules: &rbacv3.Permission_Set{Rules: rules}}}
	},
	not: func(rule *rbacv3.Permission) *rbacv3.Permission {
		return &rbacv3.Permission{Rule: &rbacv3.Permission_NotRule{NotRule: rule}}
	},
	any: func() *rbacv3.Permission { return &rbacv3.Permission{Rule: &rbacv3.Permission_Any{Any: true}} },
}

// either returns a term that matches if one of ts does. Without any it never matches.
func (s terms[T]) either(ts []T) T {
	switch len(ts) {
	case 0:
		return s.not(s.any())
	case 1:
		return ts[0]
	}
	return s.some(ts)
}

// condition is about one attribute: one of values has to match, if there are any, and
// none of not.
type condition[T any] struct {
	values, not []string
	// match returns the term of a value, and false if the filter cannot decide it. If
	// wide is true, a match forbids the request, or asks a provider about it.
	match func(value string, wide bool) (term T, ok bool)
}

// each returns the term in which all conditions hold. ok is false if the rule has to
// be dropped: it would allow requests without a condition that cannot be decided
// (AZ-7).
func each[T any](t *translator, s terms[T], conditions []condition[T]) (term T, ok bool) {
	var all []T
	for _, c := range conditions {
		for _, not := range []bool{false, true} {
			values := c.values
			if not {
				values = c.not
			}
			if len(values) == 0 {
				continue
			}
			some, decided := make([]T, 0, len(values)), true
			for _, v := range values {
				one, ok := c.match(v, not == t.allow)
				some, decided = append(some, one), decided && ok
			}
			switch {
			case !decided && t.allow:
				return term, false
			case !decided:
			case not:
				all = append(all, s.not(s.either(some)))
			default:
				all = append(all, s.either(some))
			}
		}
	}
	switch len(all) {
	case 0:
		return s.any(), true
	case 1:
		return all[0], true
	}
	return s.all(all), true
}

// rule translates a rule. It returns false if the rule is dropped.
func (t *translator) rule(r *security.Rule) (*rbacv3.Policy, bool) {
	policy := &rbacv3.Policy{}
	var domains []string
	var ofCaller []condition[*rbacv3.Principal]
	var ofOperation []condition[*rbacv3.Permission]
	for _, w := range r.GetWhen() {
		if w.GetKey() == "source.trustDomain" {
			domains = append(domains, w.GetValues()...)
		}
	}
	domains = t.aliases(domains)
	for _, w := range r.GetWhen() {
		if match := t.operationAttribute(w.GetKey()); match != nil {
			ofOperation = append(ofOperation, condition[*rbacv3.Permission]{w.GetValues(), w.GetNotValues(), match})
			continue
		}
		ofCaller = append(ofCaller, condition[*rbacv3.Principal]{w.GetValues(), w.GetNotValues(), t.callerAttribute(w.GetKey(), domains)})
	}
	from, to := r.GetFrom(), r.GetTo()
	if len(from) == 0 {
		from = []*security.Rule_From{nil}
	}
	if len(to) == 0 {
		to = []*security.Rule_To{nil}
	}
	for _, f := range from {
		p, ok := each(t, callers, append(t.source(f.GetSource(), domains), ofCaller...))
		if !ok {
			return nil, false
		}
		policy.Principals = append(policy.Principals, p)
	}
	for _, o := range to {
		p, ok := each(t, operations, append(t.operation(o.GetOperation()), ofOperation...))
		if !ok {
			return nil, false
		}
		policy.Permissions = append(policy.Permissions, p)
	}
	return policy, true
}

// source returns the conditions of a source. domains are the trust domains that the
// rule names elsewhere.
func (t *translator) source(s *security.Source, domains []string) []condition[*rbacv3.Principal] {
	domains = append(t.aliases(s.GetTrustDomains()), domains...)
	of := func(key string, values, not []string) condition[*rbacv3.Principal] {
		return condition[*rbacv3.Principal]{values, not, t.callerAttribute(key, domains)}
	}
	return []condition[*rbacv3.Principal]{
		of("source.principal", s.GetPrincipals(), s.GetNotPrincipals()),
		of("source.namespace", s.GetNamespaces(), s.GetNotNamespaces()),
		of("source.serviceAccount", s.GetServiceAccounts(), s.GetNotServiceAccounts()),
		of("source.trustDomain", s.GetTrustDomains(), s.GetNotTrustDomains()),
		of("source.ip", s.GetIpBlocks(), s.GetNotIpBlocks()),
		of("remote.ip", s.GetRemoteIpBlocks(), s.GetNotRemoteIpBlocks()),
		of("request.auth.principal", s.GetRequestPrincipals(), s.GetNotRequestPrincipals()),
	}
}

func (t *translator) operation(o *security.Operation) []condition[*rbacv3.Permission] {
	return []condition[*rbacv3.Permission]{
		{o.GetHosts(), o.GetNotHosts(), t.host},
		{o.GetMethods(), o.GetNotMethods(), t.method},
		{o.GetPaths(), o.GetNotPaths(), t.path},
		{o.GetPorts(), o.GetNotPorts(), t.port},
	}
}

// names returns the names in brackets of a key: a and b of claims[a][b].
func names(key, prefix string) ([]string, bool) {
	inner, ok := strings.CutPrefix(key, prefix+"[")
	if !ok || !strings.HasSuffix(inner, "]") {
		return nil, false
	}
	return strings.Split(strings.TrimSuffix(inner, "]"), "]["), true
}
