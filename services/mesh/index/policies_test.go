package index_test

import (
	"slices"
	"testing"

	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/index"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
)

// A policy about requests that no proxy enforces denies everything at the routers that
// it selects, and at no other proxy (POL-15, AZ-10).
func TestPoliciesDeny(t *testing.T) {
	policy := func(namespace string, p *security.AuthorizationPolicy) Change {
		return Object("AuthorizationPolicy", namespace, "p", p)
	}
	labels := func(app string) *typev1beta1.WorkloadSelector {
		return &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"app": app}}
	}
	target := func(kind, name string) *security.AuthorizationPolicy {
		return &security.AuthorizationPolicy{TargetRefs: []*typev1beta1.PolicyTargetReference{{Kind: kind, Name: name}}}
	}
	allow := Object("MeshPolicy", "", "default", &configv1.MeshPolicy{Unenforced: "allow"})
	for name, test := range map[string]struct {
		objects []Change
		want    bool
	}{
		"no policy":                 {nil, false},
		"of the namespace":          {[]Change{policy("edge", &security.AuthorizationPolicy{})}, true},
		"of another namespace":      {[]Change{policy("shop", &security.AuthorizationPolicy{})}, false},
		"of the root namespace":     {[]Change{policy("istio-system", &security.AuthorizationPolicy{})}, true},
		"by labels":                 {[]Change{policy("edge", &security.AuthorizationPolicy{Selector: labels("edge")})}, true},
		"by labels of the root":     {[]Change{policy("istio-system", &security.AuthorizationPolicy{Selector: labels("edge")})}, true},
		"by other labels":           {[]Change{policy("edge", &security.AuthorizationPolicy{Selector: labels("other")})}, false},
		"by Gateway":                {[]Change{policy("edge", target("Gateway", "gw"))}, true},
		"by another Gateway":        {[]Change{policy("edge", target("Gateway", "other"))}, false},
		"by Service (POL-14)":       {[]Change{policy("edge", target("Service", "gw"))}, false},
		"by an unknown kind":        {[]Change{policy("edge", target("Thing", "gw"))}, true},
		"of tokens":                 {[]Change{Object("RequestAuthentication", "edge", "p", &security.RequestAuthentication{})}, true},
		"of peers":                  {[]Change{Object("PeerAuthentication", "edge", "p", &security.PeerAuthentication{})}, false},
		"never good":                {[]Change{Object("AuthorizationPolicy", "edge", "p", &registryv1.Closed{MatchLabels: map[string]string{"app": "edge"}})}, true},
		"never good, other targets": {[]Change{Object("AuthorizationPolicy", "edge", "p", &registryv1.Closed{Targets: []*registryv1.Closed_Target{{Kind: "Gateway", Name: "x"}}})}, false},
		"never good, of peers":      {[]Change{Object("PeerAuthentication", "edge", "p", &registryv1.Closed{})}, false},
		"unless it is allowed":      {[]Change{policy("edge", &security.AuthorizationPolicy{}), allow}, false},
	} {
		t.Run(name, func(t *testing.T) {
			gateway := Object("Gateway", "edge", "gw", &networking.Gateway{Selector: map[string]string{"app": "edge"}})
			before := PushContext(t, gateway)
			var keys []ident.Key
			for _, o := range test.objects {
				keys = append(keys, o.Key())
			}
			pc, _ := before.Next(World(t, append(test.objects, gateway)...), keys)
			router := &proxy.Proxy{Type: proxy.Router, Namespace: "edge", Labels: map[string]string{
				"app": "edge", "gateway.networking.k8s.io/gateway-name": "gw",
			}}
			c := index.Classify(pc, router)
			if c.LDS.Denied != test.want || c.RDS.Denied != test.want {
				t.Errorf("denied: LDS %v, RDS %v, want %v", c.LDS.Denied, c.RDS.Denied, test.want)
			}
			if test.want && before.SameClasses(pc) {
				t.Error("no proxy is classified again")
			}
			if c.SDS = (index.SDSClass{}); !slices.ContainsFunc(pc.Classes(), func(o index.ProxyClass) bool { o.SDS = c.SDS; return o == c }) {
				t.Errorf("the gate does not check the class %s", c)
			}
			if c := index.Classify(pc, &proxy.Proxy{Type: proxy.Sidecar, Namespace: "edge"}); c.LDS.Denied || c.RDS.Denied {
				t.Error("a sidecar's calls are denied")
			}
			back, _ := pc.Next(World(t, gateway), keys)
			if c := index.Classify(back, router); c.LDS.Denied {
				t.Error("it is denied after the policy is gone")
			}
		})
	}
}
