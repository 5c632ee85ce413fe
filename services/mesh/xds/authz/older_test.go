package authz_test

import (
	"math/rand/v2"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	mtlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/rbac/principals/mtls_authenticated/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/re2"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds/authz"
)

// The rules for Envoys without the matcher of verified certificates are those of the others,
// with another matcher around the same texts. So what would make a rule unusable for them
// does so for all, and a version that was checked with the rules of the others has no problem
// that only they meet (POL-4).
func TestOlderEnvoysHaveNoProblemsOfTheirOwn(t *testing.T) {
	w := writer{rand.New(rand.NewPCG(4, 40))}
	changed := 0
	for range 300 {
		policies := w.policies()
		o := authz.Options{TrustDomains: w.some("prod.example", "old.example"), MaxRegex: []int{0, re2.Stock, re2.Raised}[w.IntN(3)]}
		all := inOrder(policies, o)
		o.PrincipalNames = true
		others := inOrder(policies, o)
		for i, f := range others {
			if (f == nil) != (all[i] == nil) {
				t.Fatalf("filter %d is there for one of them only: %v and %v", i, all[i], f)
			}
			if f == nil {
				continue
			}
			m := f.(interface {
				GetRules() *rbacv3.RBAC
				GetShadowRules() *rbacv3.RBAC
			})
			for _, rules := range []*rbacv3.RBAC{m.GetRules(), m.GetShadowRules()} {
				for _, p := range rules.GetPolicies() {
					for _, id := range p.GetPrincipals() {
						changed += verify(t, id)
					}
				}
			}
			if !proto.Equal(f, all[i]) {
				t.Fatalf("filter %d:\n%v\nfor other Envoys, with the same matcher:\n%v", i, all[i], f)
			}
		}
	}
	if changed == 0 {
		t.Error("no rule is about a certificate")
	}
}

// inOrder returns the filters of requests and those of connections.
func inOrder(policies []world.Object, o authz.Options) []proto.Message {
	h, c := authz.ForHTTP(policies, o), authz.ForTCP(policies, o)
	return append(filters(h.Custom, h.Audit, h.Deny, h.Allow), filters(c.Custom, c.Audit, c.Deny, c.Allow)...)
}

// verify puts the matcher of verified certificates into a principal, and counts its places.
func verify(t *testing.T, p *rbacv3.Principal) (n int) {
	t.Helper()
	switch id := p.GetIdentifier().(type) {
	case *rbacv3.Principal_AndIds:
		for _, one := range id.AndIds.GetIds() {
			n += verify(t, one)
		}
	case *rbacv3.Principal_OrIds:
		for _, one := range id.OrIds.GetIds() {
			n += verify(t, one)
		}
	case *rbacv3.Principal_NotId:
		n = verify(t, id.NotId)
	case *rbacv3.Principal_Authenticated_:
		name := id.Authenticated.GetPrincipalName()
		config := &mtlsv3.Config{SanMatcher: &tlsv3.SubjectAltNameMatcher{SanType: tlsv3.SubjectAltNameMatcher_URI, Matcher: name}}
		if name.GetSafeRegex().GetRegex() == "(?s).+" { // any name
			config = &mtlsv3.Config{AnyValidatedClientCertificate: true}
		}
		packed, err := anypb.New(config)
		if err != nil {
			t.Fatal(err)
		}
		p.Identifier = &rbacv3.Principal_Custom{Custom: &corev3.TypedExtensionConfig{Name: proxy.MTLSAuthenticated, TypedConfig: packed}}
		n = 1
	}
	return n
}
