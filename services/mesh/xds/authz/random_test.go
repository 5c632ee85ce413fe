package authz_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	security "istio.io/api/security/v1beta1"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/re2"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds/authz"
)

// A filter without rules lets everything pass, so none comes of random policies
// (POL-9), valid or not: a filter exists if and only if a policy has its action, ALLOW
// drops rules and no other action does (AZ-7), Envoy accepts the message, and one for
// connections has no condition about requests (S28).
func TestNothingPassesByAccident(t *testing.T) {
	w := writer{rand.New(rand.NewPCG(28, 9))}
	for range 300 {
		policies := w.policies()
		o := authz.Options{TrustDomains: w.some("prod.example", "old.example"), MaxRegex: []int{0, re2.Stock, re2.Raised}[w.IntN(3)], PrincipalNames: w.IntN(4) == 0}
		h, c := authz.ForHTTP(policies, o), authz.ForTCP(policies, o)
		checkSlots(t, policies, filters(h.Custom, h.Audit, h.Deny, h.Allow))
		checkSlots(t, policies, filters(c.Custom, c.Audit, c.Deny, c.Allow))
		for _, f := range filters(c.Custom, c.Audit, c.Deny, c.Allow) {
			if f == nil {
				continue
			}
			text, err := protojson.Marshal(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, ofRequest := range []string{`"header"`, `"urlPath"`, `"uriTemplate"`, "jwt_authn"} {
				if strings.Contains(string(text), ofRequest) {
					t.Fatalf("a filter of connections has %s: %s", ofRequest, text)
				}
			}
		}
		if t.Failed() {
			t.Fatalf("%v: %+v", policies, o)
		}
	}
}

// checkSlots checks the filters that policies become, in the order of slots.
func checkSlots(t *testing.T, policies []world.Object, all []proto.Message) {
	t.Helper()
	want, dry := map[string]int{}, map[string]int{}
	for _, p := range policies {
		name, n := "deny", 1
		if d, ok := p.Message.(*kind.DryRun); ok && !d.Enforced() {
			dry[strings.ToLower(d.Inner.GetAction().String())] += len(d.Inner.GetRules())
			continue
		}
		m, ok := p.Message.(*security.AuthorizationPolicy)
		if d, is := p.Message.(*kind.DryRun); is {
			m, ok = d.Inner, true
		}
		if ok && m.GetAction() <= security.AuthorizationPolicy_CUSTOM {
			name, n = strings.ToLower(m.GetAction().String()), len(m.GetRules())
		}
		want[name] += n
	}
	for i, f := range all {
		n, exists := want[slots[i]]
		tried, isTried := dry[slots[i]]
		if (f != nil) != (exists || isTried) {
			t.Errorf("%s: there is a filter: %v, and a policy: %v", slots[i], f != nil, exists || isTried)
		}
		if f == nil {
			continue
		}
		if err := f.(interface{ ValidateAll() error }).ValidateAll(); err != nil {
			t.Errorf("%s: %v", slots[i], err)
		}
		m := f.(interface {
			GetRules() *rbacv3.RBAC
			GetShadowRules() *rbacv3.RBAC
		})
		rules := m.GetRules()
		if slots[i] == "custom" {
			rules = m.GetShadowRules()
		}
		if slots[i] != "custom" {
			shadow := m.GetShadowRules()
			is := len(shadow.GetPolicies())
			if (shadow != nil) != isTried || is > tried || is < tried && slots[i] != "allow" {
				t.Errorf("%s: %d policies of %d rules are a dry run: %v", slots[i], is, tried, f)
			}
		}
		if !exists { // dry runs only: all pass
			if rules != nil {
				t.Errorf("%s: a dry run is enforced: %v", slots[i], f)
			}
			continue
		}
		is := len(rules.GetPolicies())
		if rules == nil || is > n || is < n && slots[i] != "allow" {
			t.Errorf("%s: %d policies of %d rules: %v", slots[i], is, n, f)
		}
	}
}

// writer writes random policies, many of which are invalid.
type writer struct{ *rand.Rand }

func (w writer) some(from ...string) []string {
	var some []string
	for _, v := range from {
		if w.IntN(3) == 0 {
			some = append(some, v)
		}
	}
	return some
}

func (w writer) values() []string {
	return w.some("a", "a*", "*a", "*", "", "*a*", "*/sa/b", "td/ns/a/sa/b", "prod.example/ns/*", "/a/{*}", "80", "x:80", "10.0.0.0/8", "fd00::1", strings.Repeat("long.", 40))
}

func (w writer) policies() []world.Object {
	var policies []world.Object
	for i := range w.IntN(4) {
		o := world.Object{Key: ident.Key{Kind: "AuthorizationPolicy", Namespace: "shop", Name: string(rune('a' + i))}}
		if w.IntN(8) == 0 {
			o.Message = &registryv1.Closed{}
		} else {
			p := &security.AuthorizationPolicy{Action: security.AuthorizationPolicy_Action(w.IntN(5))}
			for range w.IntN(4) {
				p.Rules = append(p.Rules, w.rule())
			}
			o.Message = p
			if w.IntN(4) == 0 {
				o.Message = &kind.DryRun{DryRun: &registryv1.DryRun{InvalidAnnotation: w.IntN(4) == 0}, Inner: p}
			}
		}
		policies = append(policies, o)
	}
	return policies
}

func (w writer) rule() *security.Rule {
	r := &security.Rule{}
	for range w.IntN(3) {
		s := &security.Source{}
		w.fill(&s.Principals, &s.NotPrincipals, &s.Namespaces, &s.NotNamespaces, &s.ServiceAccounts, &s.NotServiceAccounts, &s.TrustDomains, &s.NotTrustDomains,
			&s.RequestPrincipals, &s.NotRequestPrincipals, &s.IpBlocks, &s.NotIpBlocks, &s.RemoteIpBlocks, &s.NotRemoteIpBlocks)
		r.From = append(r.From, &security.Rule_From{Source: s})
	}
	for range w.IntN(3) {
		o := &security.Operation{}
		w.fill(&o.Hosts, &o.NotHosts, &o.Ports, &o.NotPorts, &o.Methods, &o.NotMethods, &o.Paths, &o.NotPaths)
		r.To = append(r.To, &security.Rule_To{Operation: o})
	}
	for range w.IntN(3) {
		keys := []string{
			"source.ip", "remote.ip", "source.namespace", "source.principal", "source.serviceAccount", "source.trustDomain", "request.auth.principal",
			"request.auth.audiences", "request.auth.presenter", "request.auth.claims[a][b]", "request.headers[x-a]", "destination.ip", "destination.port",
			"connection.sni", "experimental.envoy.filters.network.mysql_proxy[a]", "source.unknown", "",
		}
		c := &security.Condition{Key: keys[w.IntN(len(keys))]}
		w.fill(&c.Values, &c.NotValues)
		r.When = append(r.When, c)
	}
	return r
}

func (w writer) fill(lists ...*[]string) {
	for _, l := range lists {
		if w.IntN(4) == 0 {
			*l = w.values()
		}
	}
}
