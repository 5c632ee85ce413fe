package permit

import (
	"testing"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
)

func key(source, kind string) ident.Key {
	return ident.Key{Source: source, Instance: "dc1", Kind: kind, Namespace: "shop", Name: "a"}
}

// ACL-2, CA-9, POL-12: what sources may publish without rules.
func TestDefaults(t *testing.T) {
	for _, test := range []struct {
		source, kind string
		want         bool
	}{
		{"consul", "ServiceEntry", true},
		{"consul", "Service", true},
		{"consul", "Gateway", false},
		{"nacos", "EndpointSlice", true},
		{"nacos", "MeshConfig", false},
		{"mcpxds", "EnvoyFilter", true},
		{"mcpxds", "MeshConfig", false},
		{"mcpxds", "Resource", false},
		{"kubernetes", "MeshPolicy", true},
		{"file", "Resource", true},
		{"api", "MeshNetworks", true},
		{"up", "MeshPolicy", true},
		{"other", "VirtualService", true},
		{"other", "Resource", false},
		{"other", "MeshPolicy", false},
		{"ca", "TrustBundle", true},
		{"ca", "VirtualService", false},
		{"jwks", "Jwks", true},
		{"jwks", "TrustBundle", false},
		{"ca", "Jwks", false},
		{"kubernetes", "TrustBundle", false},
		{"file", "Jwks", false},
		{"up", "TrustBundle", false},
	} {
		if d := New(nil, "cluster.local", ident.Shard{}).Forbid(key(test.source, test.kind), nil); (d == nil) != test.want {
			t.Errorf("%s publishes a %s: got %v, want allowed %t", test.source, test.kind, d, test.want)
		}
	}
}

// ACL-1, CA-9, POL-12: the first rule that matches source, instance and kind decides, but about no
// kind that belongs to another source.
func TestRules(t *testing.T) {
	rules := []*configv1.SourceRule{
		{Source: "consul", Instance: "dc*", Kinds: []string{"WorkloadEntry"}, Namespaces: []string{"shop-*"}},
		{Source: "consul", Hosts: []string{"*.consul", "a.shop.svc.cluster.local"}},
		{Source: "file", Instance: "edge", Kinds: []string{"Gateway", "Mesh*"}},
		{Source: "kubernetes", Namespaces: []string{"shop"}},
		{Source: "up", Kinds: []string{"ServiceEntry"}},
		{Source: "consul", Instance: "east"},
		{Source: "nacos", Kinds: []string{"TrustBundle", "Jwks"}},
		{Source: "ca", Instance: "other", Kinds: []string{"*"}},
		{Source: "ca", Instance: "home", Kinds: []string{"Jwks"}},
	}
	home := ident.Shard{Source: "kubernetes", Instance: "home"}
	in := func(instance string, k ident.Key) ident.Key {
		k.Instance, k.Namespace = instance, ""
		return k
	}
	entry := func(hosts ...string) proto.Message { return &networking.ServiceEntry{Hosts: hosts} }
	for name, test := range map[string]struct {
		key  ident.Key
		m    proto.Message
		want string
	}{
		"a host that matches":            {key("consul", "ServiceEntry"), entry("a.consul"), ""},
		"a host in capital letters":      {key("consul", "ServiceEntry"), entry("A.Consul"), ""},
		"a host that does not match":     {key("consul", "ServiceEntry"), entry("a.consul", "a.example"), `consul/dc1 may not publish the host "a.example"`},
		"a wildcard that is wider":       {key("consul", "ServiceEntry"), entry("*"), `consul/dc1 may not publish the host "*"`},
		"a wildcard as in the rule":      {key("consul", "ServiceEntry"), entry("*.consul"), ""},
		"a short host is completed":      {key("consul", "VirtualService"), &networking.VirtualService{Hosts: []string{"a"}}, ""},
		"a short host of another name":   {key("consul", "DestinationRule"), &networking.DestinationRule{Host: "b"}, `consul/dc1 may not publish the host "b.shop.svc.cluster.local"`},
		"a Kubernetes Service":           {key("consul", "Service"), &registryv1.Service{}, ""},
		"a Service of another domain":    {key("consul", "Service"), &registryv1.Service{DomainSuffix: "x"}, `consul/dc1 may not publish the host "a.shop.svc.x"`},
		"a Gateway's host and namespace": {key("consul", "Gateway"), &networking.Gateway{Servers: []*networking.Server{{Hosts: []string{"shop/a.consul"}}}}, ""},
		"a kind without hosts":           {key("consul", "EnvoyFilter"), nil, "consul/dc1 may not publish objects of kind EnvoyFilter"},
		"raw resources name any host":    {key("consul", "Resource"), nil, "consul/dc1 may not publish objects of kind Resource"},
		"another namespace":              {key("consul", "WorkloadEntry"), nil, `consul/dc1 may not publish objects of kind WorkloadEntry in namespace "shop"`},
		"cannot be decoded":              {key("consul", "ServiceEntry"), nil, ""},
		"another instance: defaults":     {key("file", "ServiceEntry"), nil, ""},
		"the policy that is served":      {in("home", key("kubernetes", "MeshPolicy")), nil, ""},
		"another policy":                 {in("remote", key("kubernetes", "MeshPolicy")), nil, `kubernetes/remote may not publish objects of kind MeshPolicy in namespace ""`},
		"another policy, another kind":   {in("up", key("up", "MeshPolicy")), nil, "up/up may not publish objects of kind MeshPolicy"},
		"another policy, permitted":      {in("edge", key("file", "MeshPolicy")), nil, ""},
		"another policy, no rules":       {in("inner", key("file", "MeshPolicy")), nil, ""},
		"another policy, not trusted":    {in("east", key("consul", "MeshPolicy")), nil, "consul/east may not publish objects of kind MeshPolicy"},
		"roots of another source":        {key("nacos", "TrustBundle"), nil, "nacos/dc1 may not publish objects of kind TrustBundle"},
		"keys of another source":         {key("nacos", "Jwks"), nil, "nacos/dc1 may not publish objects of kind Jwks"},
		"roots of the CA":                {key("ca", "TrustBundle"), nil, ""},
		"roots of a CA with rules":       {in("other", key("ca", "TrustBundle")), nil, ""},
		"roots of a CA without a rule":   {in("home", key("ca", "TrustBundle")), nil, "ca/home may not publish objects of kind TrustBundle"},
		"keys of the CA":                 {in("other", key("ca", "Jwks")), nil, "ca/other may not publish objects of kind Jwks"},
		"a delegate":                     {key("consul", "VirtualService"), &networking.VirtualService{}, "consul/dc1 may publish some hosts only, and a VirtualService without hosts has those of every VirtualService that delegates to it"},
		"a delegate, no hosts in a rule": {key("kubernetes", "VirtualService"), &networking.VirtualService{}, ""},
		"a namespace that matches":       {key("kubernetes", "Service"), nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, r := "", New(rules, "cluster.local", home)
			if d := r.Forbid(test.key, test.m); d != nil {
				got = d.Reason
			}
			if got != "" && r.Forbid(test.key, nil) == nil && !r.ByHost(test.key) {
				t.Error("ByHost says that the message does not matter")
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// A policy that decides alike about a shard leaves it alone.
func TestSameFor(t *testing.T) {
	consul := &configv1.SourceRule{Source: "consul", Hosts: []string{"a"}}
	a := New([]*configv1.SourceRule{consul}, "cluster.local", ident.Shard{})
	b := New([]*configv1.SourceRule{{Source: "file"}, proto.CloneOf(consul)}, "example.com", ident.Shard{})
	for source, want := range map[string]bool{"consul": false, "file": false, "nacos": true} {
		if got := a.SameFor(b, ident.Shard{Source: source, Instance: "x"}); got != want {
			t.Errorf("%s: got %t, want %t", source, got, want)
		}
	}
}

// A policy from another shard decides otherwise about the shards of both, if rules are
// about them.
func TestSameForShardsOfPolicies(t *testing.T) {
	rules := []*configv1.SourceRule{{Source: "kubernetes"}}
	shard := func(source, instance string) ident.Shard { return ident.Shard{Source: source, Instance: instance} }
	a, b := New(rules, "", shard("kubernetes", "a")), New(rules, "", shard("kubernetes", "b"))
	for sh, want := range map[ident.Shard]bool{
		shard("kubernetes", "a"): false, shard("kubernetes", "b"): false, shard("kubernetes", "c"): true, shard("file", "a"): true,
	} {
		if got := a.SameFor(b, sh); got != want {
			t.Errorf("%s: got %t, want %t", sh, got, want)
		}
	}
}

func TestMatch(t *testing.T) {
	for _, test := range []struct {
		glob, text string
		want       bool
	}{
		{"", "", true}, {"*", "", true}, {"*", "a.b", true}, {"a", "a", true}, {"a", "ab", false},
		{"a*", "ab", true}, {"*b", "ab", true}, {"a*c*e", "abcde", true}, {"a*c*e", "abde", false},
		{"aa*aa", "aaa", false}, {"*.b", "b", false}, {"a**b", "ab", true}, {"*x*", "axb", true},
	} {
		if got := Match(test.glob, test.text); got != test.want {
			t.Errorf("Match(%q, %q) is %t", test.glob, test.text, got)
		}
	}
}

// CA-9, POL-12: the advice about a kind of one source does not send users to rules that cannot
// lift it.
func TestSoleAdvice(t *testing.T) {
	d := New(nil, "", ident.Shard{}).Forbid(key("file", "TrustBundle"), nil)
	if want := "remove it at its source: only source ca publishes this kind, and no rule allows another one"; d == nil || d.Advice != want || d.Code != Code {
		t.Errorf("got %+v, want advice %q", d, want)
	}
}
