package policy_test

import (
	"slices"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	security "istio.io/api/security/v1beta1"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/index"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/xds/policy"
)

// Every class has all slots. One without policies lets all requests pass, and only then:
// RBAC without rules allows (POL-9).
func TestSlots(t *testing.T) {
	var want []string
	for _, f := range policy.Slots() {
		want = append(want, f.GetName())
	}
	of := func(action security.AuthorizationPolicy_Action) Change {
		return Object("AuthorizationPolicy", "a", "p", &security.AuthorizationPolicy{Action: action, Rules: []*security.Rule{{}}})
	}
	for name, test := range map[string]struct {
		policies []Change
		filled   []string
	}{
		"none":               {nil, nil},
		"deny":               {[]Change{of(security.AuthorizationPolicy_DENY)}, []string{policy.Deny}},
		"allow":              {[]Change{of(security.AuthorizationPolicy_ALLOW)}, []string{policy.Allow}},
		"audit":              {[]Change{of(security.AuthorizationPolicy_AUDIT)}, []string{policy.Audit}},
		"custom":             {[]Change{of(security.AuthorizationPolicy_CUSTOM)}, []string{policy.CustomMatch, policy.Custom}},
		"never good":         {[]Change{Object("AuthorizationPolicy", "a", "p", &registryv1.Closed{})}, []string{policy.Deny}},
		"tokens, never good": {[]Change{Object("RequestAuthentication", "a", "p", &registryv1.Closed{})}, []string{policy.JWT}},
		"tokens":             {[]Change{Object("RequestAuthentication", "a", "p", &security.RequestAuthentication{})}, []string{policy.JWT}},
		"elsewhere":          {[]Change{Object("AuthorizationPolicy", "b", "p", &security.AuthorizationPolicy{})}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			pc := PushContext(t, test.policies...)
			var names, filled []string
			for _, part := range policy.Parts(pc.Read(), index.ECDSClass{Namespace: "a", Selected: "a/*"}) {
				pieces, problems := part.Make(pc.Read())
				if len(pieces) != 1 || (len(problems) > 0) != (name == "custom" && pieces[0].Name == policy.Custom) { // it names no provider
					t.Fatalf("%+v makes %v, problems %v", part, pieces, problems)
				}
				m := pieces[0].Message.(*corev3.TypedExtensionConfig)
				if m.GetName() != pieces[0].Name {
					t.Errorf("the resource %s is named %s", pieces[0].Name, m.GetName())
				}
				names = append(names, m.GetName())
				rbac := new(httpv3.RBAC)
				if m.GetTypedConfig().MessageIs(new(jwtv3.JwtAuthentication)) {
					filled = append(filled, m.GetName())
				} else if err := m.GetTypedConfig().UnmarshalTo(rbac); err != nil {
					t.Fatal(err)
				}
				if rbac.GetRules() != nil || rbac.GetShadowRules() != nil {
					filled = append(filled, m.GetName())
				}
			}
			if !slices.Equal(names, want) || !slices.Equal(filled, test.filled) {
				t.Errorf("slots %v, of which have rules %v; want %v and %v", names, filled, want, test.filled)
			}
		})
	}
}

// A slot whose content has not come refuses every request (POL-2).
func TestSlotsDenyFirst(t *testing.T) {
	for _, f := range policy.Slots() {
		d := f.GetConfigDiscovery()
		rbac := new(httpv3.RBAC)
		if err := d.GetDefaultConfig().UnmarshalTo(rbac); err != nil {
			t.Fatal(err)
		}
		if r := rbac.GetRules(); r.GetAction() != rbacv3.RBAC_DENY || len(r.GetPolicies()) != 1 {
			t.Errorf("%s begins with %v", f.GetName(), r)
		}
		if s := d.GetConfigSource(); s.GetAds() == nil || s.GetInitialFetchTimeout().GetSeconds() != 5 {
			t.Errorf("%s comes from %v", f.GetName(), s)
		}
	}
}
