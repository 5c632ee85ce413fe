package listener

import (
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	networkv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"meshlog.dev/services/mesh/index"
)

const domainsFilter = "meshlog.trust-domains"

// ofOneDomain returns the filter that closes connections of clients whose certificate has
// URIs of two authorities; none if there is one only. The roots of the first URI's domain
// verify the certificate, and policies look at any of its URIs (S27, S34), so one domain
// could otherwise sign the identities of another (CA-13).
func ofOneDomain(t index.Trust) []*listenerv3.Filter {
	if !t.Several() {
		return nil
	}
	var of []*rbacv3.Principal // each authority
	for _, domains := range t.Authorities() {
		var some []*rbacv3.Principal
		for _, d := range domains {
			some = append(some, inDomain(d))
		}
		of = append(of, anyOf(some))
	}
	var pairs []*rbacv3.Principal
	for i, p := range of[:len(of)-1] {
		pairs = append(pairs, &rbacv3.Principal{Identifier: &rbacv3.Principal_AndIds{
			AndIds: &rbacv3.Principal_Set{Ids: []*rbacv3.Principal{p, anyOf(of[i+1:])}},
		}})
	}
	return []*listenerv3.Filter{networkFilter(domainsFilter, &networkv3.RBAC{
		StatPrefix: "trust_domains.",
		Rules: &rbacv3.RBAC{Action: rbacv3.RBAC_DENY, Policies: map[string]*rbacv3.Policy{
			"several-trust-domains": {
				Permissions: []*rbacv3.Permission{{Rule: &rbacv3.Permission_Any{Any: true}}},
				Principals:  pairs,
			},
		}},
	})}
}

// inDomain matches a client with a URI of a trust domain. The principal's name is any of its
// URIs; a client without one, whose other names would count, has shown no identity.
func inDomain(domain string) *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_Authenticated_{Authenticated: &rbacv3.Principal_Authenticated{
		PrincipalName: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: "spiffe://" + domain + "/"}},
	}}}
}

func anyOf(some []*rbacv3.Principal) *rbacv3.Principal {
	if len(some) == 1 {
		return some[0]
	}
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_OrIds{OrIds: &rbacv3.Principal_Set{Ids: some}}}
}
