package index_test

import (
	"slices"
	"testing"

	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/index"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
)

// A policy is for the routers that it selects, and an AuthorizationPolicy also for their
// connections (AZ-10, POL-3).
func TestPoliciesOfRouters(t *testing.T) {
	policy := func(namespace string, p *security.AuthorizationPolicy) Change {
		return Object("AuthorizationPolicy", namespace, "p", p)
	}
	labels := func(app string) *typev1beta1.WorkloadSelector {
		return &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"app": app}}
	}
	target := func(kind, name string) *security.AuthorizationPolicy {
		return &security.AuthorizationPolicy{TargetRefs: []*typev1beta1.PolicyTargetReference{{Kind: kind, Name: name}}}
	}
	const nobody, requests, both = 0, 1, 2
	for name, test := range map[string]struct {
		objects []Change
		want    int
	}{
		"no policy":              {nil, nobody},
		"of the namespace":       {[]Change{policy("edge", &security.AuthorizationPolicy{})}, both},
		"of another namespace":   {[]Change{policy("shop", &security.AuthorizationPolicy{})}, nobody},
		"of the root namespace":  {[]Change{policy("istio-system", &security.AuthorizationPolicy{})}, both},
		"by labels":              {[]Change{policy("edge", &security.AuthorizationPolicy{Selector: labels("edge")})}, both},
		"by labels of the root":  {[]Change{policy("istio-system", &security.AuthorizationPolicy{Selector: labels("edge")})}, both},
		"by other labels":        {[]Change{policy("edge", &security.AuthorizationPolicy{Selector: labels("other")})}, nobody},
		"by Gateway":             {[]Change{policy("edge", target("Gateway", "gw"))}, both},
		"by another Gateway":     {[]Change{policy("edge", target("Gateway", "other"))}, nobody},
		"by Gateway of the root": {[]Change{policy("istio-system", target("Gateway", "gw"))}, nobody},
		"by its label, of the root": {[]Change{policy("istio-system", &security.AuthorizationPolicy{Selector: &typev1beta1.WorkloadSelector{
			MatchLabels: map[string]string{"gateway.networking.k8s.io/gateway-name": "gw"},
		}})}, both},
		"by Service (POL-14)":       {[]Change{policy("edge", target("Service", "gw"))}, nobody},
		"by an unknown kind":        {[]Change{policy("edge", target("Thing", "gw"))}, both},
		"of tokens":                 {[]Change{Object("RequestAuthentication", "edge", "p", &security.RequestAuthentication{})}, requests},
		"of peers":                  {[]Change{Object("PeerAuthentication", "edge", "p", &security.PeerAuthentication{})}, nobody},
		"never good":                {[]Change{Object("AuthorizationPolicy", "edge", "p", &registryv1.Closed{MatchLabels: map[string]string{"app": "edge"}})}, both},
		"never good, other targets": {[]Change{Object("AuthorizationPolicy", "edge", "p", &registryv1.Closed{Targets: []*registryv1.Closed_Target{{Kind: "Gateway", Name: "x"}}})}, nobody},
		"never good, of peers":      {[]Change{Object("PeerAuthentication", "edge", "p", &registryv1.Closed{})}, nobody},
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
			if got := c.ECDS.Selected != ""; got != (test.want != nobody) {
				t.Errorf("the policy is for requests: %v, want %v", got, !got)
			}
			if got := c.LDS.Policies != ""; got != (test.want == both) {
				t.Errorf("the policy is for connections: %v, want %v", got, !got)
			}
			if test.want != nobody && before.SameClasses(pc) {
				t.Error("no proxy is classified again")
			}
			for _, typ := range []ident.ResourceType{ident.ECDS, ident.LDS, ident.RDS} {
				same := func(o index.ProxyClass) bool {
					o.ECDS.Namespace = c.ECDS.Namespace // policies of the root are checked there
					return o.Only(typ) == c.Only(typ)
				}
				if typ == ident.LDS && c.LDS.Policies != "" { // the filters are the same at sidecars
					same = func(o index.ProxyClass) bool { return o.LDS.Policies == c.LDS.Policies && o.LDS.Inbound != "" }
				}
				if !slices.ContainsFunc(pc.Classes(), same) {
					t.Errorf("the gate does not check %s of the class %s", typ, c)
				}
			}
			back, _ := pc.Next(World(t, gateway), keys)
			if c := index.Classify(back, router); c.ECDS.Selected != "" || c.LDS.Policies != "" {
				t.Error("the router has the policy after it is gone")
			}
		})
	}
}

// A class has the selectors of the policies that matched, never labels, and gRPC clients
// have none. A change of a policy changes one input and no class.
func TestPoliciesOfClass(t *testing.T) {
	policy := func(namespace string, action security.AuthorizationPolicy_Action, app string) Change {
		p := &security.AuthorizationPolicy{Action: action}
		if app != "" {
			p.Selector = &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"app": app}}
		}
		return Object("AuthorizationPolicy", namespace, "p"+app, p)
	}
	deny := security.AuthorizationPolicy_DENY
	gateway := Object("Gateway", "c", "gw", &networking.Gateway{Selector: map[string]string{"app": "edge"}})
	pc := PushContext(t, policy("a", deny, "x"), policy("istio-system", deny, ""), policy("b", deny, "x"), gateway)
	for _, test := range []struct {
		name string
		of   proxy.Proxy
		want index.ECDSClass
	}{
		{"sidecar", proxy.Proxy{Type: proxy.Sidecar, Namespace: "a", Labels: map[string]string{"app": "x", "version": "1"}},
			index.ECDSClass{Client: index.ClientSidecar, Namespace: "a", Selected: "a/app=\"x\"\nistio-system/*"}},
		{"router without Gateways", proxy.Proxy{Type: proxy.Router, Namespace: "c", Labels: map[string]string{"app": "x"}}, index.ECDSClass{}},
		{"router of another namespace", proxy.Proxy{Type: proxy.Router, Namespace: "c", Labels: map[string]string{"app": "edge"}},
			index.ECDSClass{Client: index.ClientRouter, Namespace: "c", Selected: "istio-system/*"}},
		{"gRPC client", proxy.Proxy{Type: proxy.Sidecar, GRPC: true, Namespace: "a"}, index.ECDSClass{}},
	} {
		if got := index.Classify(pc, &test.of).ECDS; got != test.want {
			t.Errorf("%s: the class is %+v, want %+v", test.name, got, test.want)
		}
	}
	changed := policy("a", security.AuthorizationPolicy_ALLOW, "x")
	next, inputs := pc.Next(World(t, changed, policy("istio-system", deny, ""), policy("b", deny, "x"), gateway), []ident.Key{changed.Key()})
	if want := []index.Input{{Kind: index.InputPolicies, A: "a/app=\"x\""}}; !slices.Equal(inputs, want) || !next.SameClasses(pc) {
		t.Errorf("the change changes the inputs %v, want %v; same classes: %v", inputs, want, next.SameClasses(pc))
	}
}
