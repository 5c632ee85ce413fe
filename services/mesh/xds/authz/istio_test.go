package authz_test

import (
	"strings"
	"testing"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"

	"meshlog.dev/services/mesh/re2"
	"meshlog.dev/services/mesh/simulate/rbac"
	"meshlog.dev/services/mesh/xds/authz"
)

// asIstio are policies with the callers that Istio lets pass and denies. The mesh has the
// trust domains prod.example and old.example.
var asIstio = []struct {
	name, spec     string
	passes, denied []string // a URI, or ISSUER SUBJECT of a token
}{
	{
		"POL-5: a forbidden namespace of longer identities", `{action: DENY, rules: [{from: [{source: {namespaces: [bad, "dev-*"]}}]}]}`,
		[]string{"spiffe://prod.example/ns/good/sa/b", "spiffe://prod.example/ns/badly/sa/b"},
		[]string{
			"spiffe://other.example/region/eu/ns/bad/sa/b", "spiffe://other.example/ns/bad/pod/b", "spiffe://other.example/ns/dev-a/x/sa/b",
			"spiffe://prod.example/ns/bad/sa/b",
		},
	},
	{
		"POL-5: all but a namespace of longer identities", `{rules: [{from: [{source: {notNamespaces: [bad]}}]}]}`,
		[]string{"spiffe://other.example/region/eu/ns/good/sa/b"}, []string{"spiffe://other.example/region/eu/ns/bad/sa/b"},
	},
	{
		"POL-5: a forbidden account of longer identities", `{action: DENY, rules: [{from: [{source: {serviceAccounts: [a/b]}}]}]}`,
		[]string{"spiffe://prod.example/ns/a/sa/bc", "spiffe://prod.example/ns/a/sa/c"},
		[]string{"spiffe://prod.example/ns/a/sa/b", "spiffe://other.example/x/y/ns/a/k/v/sa/b", "spiffe://other.example/ns/a/sa/b/pod/1"},
	},
	{
		"POL-4: everyone with a certificate is forbidden", `{action: DENY, rules: [{from: [{source: {principals: ["*"]}}]}]}`,
		[]string{""}, []string{"spiffe://prod.example/ns/a/sa/b", "https://partner.example/a"},
	},
	{
		"POL-4: only callers without a certificate", `{rules: [{from: [{source: {notPrincipals: ["*"]}}]}]}`,
		[]string{""}, []string{"spiffe://prod.example/ns/a/sa/b", "https://partner.example/a"},
	},
	{
		"AZ-4: a begin has no aliases", `{rules: [{from: [{source: {principals: ["prod.example/ns/a/*"]}}]}]}`,
		[]string{"spiffe://prod.example/ns/a/sa/b"}, []string{"spiffe://old.example/ns/a/sa/b"},
	},
	{
		"AZ-4: a forbidden begin has aliases", `{action: DENY, rules: [{from: [{source: {principals: ["prod.example/ns/a/*", "old*/ns/c/sa/d"]}}]}]}`,
		[]string{"spiffe://other.example/ns/a/sa/b"},
		[]string{"spiffe://prod.example/ns/a/sa/b", "spiffe://old.example/ns/a/sa/b", "spiffe://old.example/ns/c/sa/d", "spiffe://prod.example/ns/c/sa/d"},
	},
	{
		"AZ-4: a star before the end of a trust domain", `{rules: [{from: [{source: {principals: ["*d.example/ns/a/sa/b"]}}]}]}`,
		[]string{"spiffe://prod.example/ns/a/sa/b", "spiffe://old.example/ns/a/sa/b", "spiffe://bad.example/ns/a/sa/b"},
		[]string{"spiffe://third.org/ns/a/sa/b", "spiffe://prod.example/ns/a/sa/bc"},
	},
	{
		"AZ-4: the star covers one alias only", `{action: DENY, rules: [{from: [{source: {principals: ["*rod.example/ns/a/sa/b"]}}]}]}`,
		[]string{"spiffe://third.org/ns/a/sa/b"}, []string{"spiffe://prod.example/ns/a/sa/b", "spiffe://old.example/ns/a/sa/b"},
	},
	{
		"AZ-4: a trust domain has aliases", `{action: DENY, rules: [{from: [{source: {trustDomains: [prod.example]}}]}]}`,
		[]string{"spiffe://other.example/ns/a/sa/b"}, []string{"spiffe://prod.example/ns/a/sa/b", "spiffe://old.example/ns/a/sa/b"},
	},
	{
		"AZ-4: a namespace of a trust domain with aliases", `{rules: [{from: [{source: {trustDomains: [prod.example], namespaces: [a]}}]}]}`,
		[]string{"spiffe://prod.example/ns/a/sa/b", "spiffe://old.example/ns/a/sa/b"}, []string{"spiffe://other.example/ns/a/sa/b"},
	},
	{
		"POL-11: the issuer ends at the last slash", `{rules: [{from: [{source: {requestPrincipals: ["https://idp.example/tenant/ann"]}}]}]}`,
		[]string{"https://idp.example/tenant ann"}, []string{"https://idp.example tenant/ann", "https: /idp.example/tenant/ann"},
	},
	{
		"POL-11: everyone of an issuer", `{rules: [{from: [{source: {requestPrincipals: ["https://idp.example/*", "*/bob"]}}]}]}`,
		[]string{"https://idp.example ann", "https://any.example bob"},
		[]string{"https://idp.example/tenant ann", "https://any.example x/bob"},
	},
	{
		"POL-11: a star does not cover the end of an issuer", `{rules: [{from: [{source: {requestPrincipals: ["https://idp.example*", "*idp.example/ann"]}}]}]}`,
		[]string{"https://idp.example ann"}, []string{"https://idp.example.evil bob", "https://evil idp.example/ann"},
	},
	{
		"POL-11: forbidden at each slash", `{action: DENY, rules: [{from: [{source: {requestPrincipals: ["https://idp.example/tenant/ann", "issuer"]}}]}]}`,
		[]string{"https://idp.example/tenant bob"},
		[]string{"https://idp.example/tenant ann", "https://idp.example tenant/ann", "issuer "},
	},
}

// Callers pass where they pass Istio, and are denied where Istio denies them.
func TestDecidesAsIstio(t *testing.T) {
	for _, c := range asIstio {
		t.Run(c.name, func(t *testing.T) {
			policies := parse(t, []byte("metadata: {name: p, namespace: shop}\nspec: "+c.spec))
			f := authz.ForHTTP(policies, authz.Options{TrustDomains: []string{"prod.example", "old.example"}, MaxRegex: re2.Stock})
			for _, caller := range c.passes {
				if !passes(t, f, caller) {
					t.Errorf("%q is denied", caller)
				}
			}
			for _, caller := range c.denied {
				if passes(t, f, caller) {
					t.Errorf("%q passes", caller)
				}
			}
		})
	}
}

// passes reports whether a caller passes the filters of DENY and ALLOW.
func passes(t *testing.T, f authz.HTTP, caller string) bool {
	t.Helper()
	r := &rbac.Request{HTTP: true, Header: func(string) []string { return nil }, Path: "/", TLS: true}
	if iss, sub, ok := strings.Cut(caller, " "); !ok && caller != "" {
		r.Certificate = rbac.CertificateOf(caller)
	} else if ok {
		r.Metadata = map[string]map[string]any{"envoy.filters.http.jwt_authn": {"payload": map[string]any{"iss": iss, "sub": sub}}}
	}
	match := func(rules *rbacv3.RBAC) bool {
		_, matched, err := rbac.Match(rules, r)
		if err != nil {
			t.Fatal(err)
		}
		return matched
	}
	return !match(f.Deny.GetRules()) && (f.Allow == nil || match(f.Allow.GetRules()))
}

// CA-13: cluster.local stands for the mesh's own trust domain, as in Istio, unless it is
// another one that is trusted: its workloads are then those that a policy allows, and where a
// match forbids, it is both.
func TestLocalDomainApart(t *testing.T) {
	const own, local = "spiffe://prod.example/ns/a/sa/b", "spiffe://cluster.local/ns/a/sa/b"
	for _, c := range []struct {
		apart                  bool
		action, from           string
		ownPasses, localPasses bool
	}{
		{false, "ALLOW", "principals", true, false},
		{true, "ALLOW", "principals", false, true},
		{false, "DENY", "principals", false, true},
		{true, "DENY", "principals", false, false},
		{true, "ALLOW", "notPrincipals", false, false},
		{true, "DENY", "notPrincipals", false, true},
	} {
		policies := parse(t, []byte("metadata: {name: p, namespace: shop}\nspec: {action: "+c.action+", rules: [{from: [{source: {"+c.from+": [cluster.local/ns/a/sa/b]}}]}]}"))
		f := authz.ForHTTP(policies, authz.Options{TrustDomains: []string{"prod.example"}, LocalApart: c.apart, MaxRegex: re2.Stock})
		if o, l := passes(t, f, own), passes(t, f, local); o != c.ownPasses || l != c.localPasses {
			t.Errorf("apart %v: %s %s: own passes %v, cluster.local %v; want %v, %v", c.apart, c.action, c.from, o, l, c.ownPasses, c.localPasses)
		}
	}
}
