package permit

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
)

// ACL-3: what names can say of the rules, and what only the fold enforces.
func TestReach(t *testing.T) {
	for name, test := range map[string]struct {
		rules       []*configv1.SourceRule
		shard       string
		allow, deny string
		foldOnly    []string
	}{
		"no rules, a registry": {
			shard: "consul/dc1", allow: "dc1.EndpointSlice.* dc1.Service.* dc1.ServiceEntry.*",
		},
		"no rules, a trusted source":           {shard: "file/default", allow: "default.*.*", deny: "default.Jwks.* default.TrustBundle.*"},
		"no rules, the CA":                     {shard: "ca/a", allow: "a.TrustBundle.*"},
		"all instances of the fetcher of keys": {shard: "jwks/", allow: "*.Jwks.*"},
		"rules allow no other source the roots": {
			rules: []*configv1.SourceRule{{Source: "*", Kinds: []string{"TrustBundle", "Pod"}}}, shard: "consul/dc1", allow: "dc1.Pod.*",
		},
		"no rules, another source": {
			shard: "other/a", allow: "a.*.*", deny: "a.Jwks.* a.MeshConfig.* a.MeshNetworks.* a.MeshPolicy.* a.Resource.* a.TrustBundle.*",
		},
		"rules of another instance": {
			rules: []*configv1.SourceRule{{Source: "file", Instance: "edge", Kinds: []string{"Gateway"}}},
			shard: "file/default", allow: "default.*.*", deny: "default.Jwks.* default.TrustBundle.*",
		},
		"kinds and namespaces": {
			rules: []*configv1.SourceRule{
				{Source: "file", Kinds: []string{"Gateway", "Service"}, Namespaces: []string{"shop", "pay"}},
				{Source: "file", Kinds: []string{"Gateway", "Pod"}},
			},
			shard: "file/default",
			allow: "default.Gateway.pay default.Gateway.shop default.MeshPolicy.* default.Pod.* default.Service.pay default.Service.shop",
			foldOnly: []string{
				"sourceRules: MeshPolicy: the bus allows this, because the policy that is served may come from here",
			},
		},
		"rules permit no MeshPolicy to others": {
			rules: []*configv1.SourceRule{{Source: "*"}}, shard: "consul/dc1", allow: "dc1.*.*", deny: "dc1.Jwks.* dc1.MeshPolicy.* dc1.TrustBundle.*",
		},
		"globs that match whole names": {
			rules: []*configv1.SourceRule{{Source: "*", Instance: "**", Kinds: []string{"*"}, Namespaces: []string{"a*", "*"}}},
			shard: "file/default", allow: "default.*.*", deny: "default.Jwks.* default.TrustBundle.*",
		},
		"globs that match parts of names": {
			rules: []*configv1.SourceRule{{Source: "fi*", Instance: "def*", Kinds: []string{"Pod", "Mesh*"}, Namespaces: []string{"a", "b*"}}},
			shard: "file/default", allow: "default.*.*",
			deny: "default.DestinationRule.* default.Gateway.* default.Jwks.* default.Resource.* default.Service.* default.ServiceEntry.* default.TrustBundle.* default.VirtualService.*",
			foldOnly: []string{
				`sourceRules[0].kinds[1]: a permission is for one kind or for all, so "Mesh*" allows all`,
				`sourceRules[0].namespaces[1]: a permission is for one namespace or for all, so "b*" allows all`,
			},
		},
		"hosts": {
			rules: []*configv1.SourceRule{{Source: "consul", Hosts: []string{"*.consul"}}},
			shard: "consul/dc1", allow: "dc1.DestinationRule.* dc1.Gateway.* dc1.Service.* dc1.ServiceEntry.* dc1.VirtualService.*",
			foldOnly: []string{"sourceRules[0].hosts: the subject of a record names no host"},
		},
		"an exception of all kinds": {
			rules: []*configv1.SourceRule{{Source: "file", Kinds: []string{"Gateway", "Pod"}, Namespaces: []string{"edge"}}, {Source: "file", Namespaces: []string{"shop", "pay"}}},
			shard: "file/a", allow: "a.*.pay a.*.shop a.Gateway.edge a.MeshPolicy.* a.Pod.edge", deny: "a.Jwks.* a.TrustBundle.*",
			foldOnly: []string{
				"sourceRules[0]: Gateway, Pod in namespace pay: the bus allows this, because sourceRules[1] needs it and a permission has no exceptions",
				"sourceRules[0]: Gateway, Pod in namespace shop: the bus allows this, because sourceRules[1] needs it and a permission has no exceptions",
				"sourceRules[1]: MeshPolicy: the bus allows this, because the policy that is served may come from here",
			},
		},
		"all instances, rules of some": {
			rules: []*configv1.SourceRule{{Source: "consul", Instance: "dc1", Kinds: []string{"Pod"}}},
			shard: "consul/",
			allow: "*.EndpointSlice.* *.Service.* *.ServiceEntry.* dc1.Pod.*",
			deny:  "dc1.EndpointSlice.* dc1.Service.* dc1.ServiceEntry.*",
		},
		"all instances, a glob": {
			rules: []*configv1.SourceRule{{Source: "consul", Instance: "dc*", Kinds: []string{"Pod"}}, {Source: "consul", Instance: "dc1"}},
			shard: "consul/",
			allow: "*.EndpointSlice.* *.Pod.* *.Service.* *.ServiceEntry.* dc1.*.*",
			deny:  "*.Jwks.* *.MeshPolicy.* *.TrustBundle.*",
			foldOnly: []string{
				`sourceRules[0].instance: a permission is for one instance or for all, so "dc*" allows all`,
			},
		},
		"nothing at all": {
			rules: []*configv1.SourceRule{{Source: "consul", Kinds: []string{"MeshPolicy"}}}, shard: "consul/dc1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			source, instance, _ := strings.Cut(test.shard, "/")
			got := New(test.rules, "cluster.local", ident.Shard{}).Reach(ident.Shard{Source: source, Instance: instance})
			if allow := text(got.Allow); allow != test.allow {
				t.Errorf("allows %q, want %q", allow, test.allow)
			}
			if deny := text(got.Deny); deny != test.deny {
				t.Errorf("denies %q, want %q", deny, test.deny)
			}
			var parts []string
			for _, p := range got.FoldOnly {
				parts = append(parts, p.Field+": "+p.Reason)
			}
			if diff := cmp.Diff(test.foldOnly, parts); diff != "" {
				t.Errorf("only the fold enforces (-want +got):\n%s", diff)
			}
		})
	}
}

func text(names []Names) string {
	var all []string
	for _, n := range names {
		all = append(all, n.Instance+"."+n.Kind+"."+n.Namespace)
	}
	return strings.Join(all, " ")
}

// ACL-3: a Reach selects every object that the rules permit, none of another instance,
// and, if it names no part that only the fold enforces, no other object.
func TestReachIsNeverNarrower(t *testing.T) {
	const policies, objects = 5000, 60
	permitted, refused, exact := 0, 0, 0
	for seed := range uint64(policies) {
		r := rand.New(rand.NewPCG(seed, 3))
		pick := func(from ...string) string { return from[r.IntN(len(from))] }
		some := func(from ...string) (list []string) {
			for range r.IntN(3) {
				list = append(list, pick(from...))
			}
			return list
		}
		var rules []*configv1.SourceRule
		for range r.IntN(5) {
			rules = append(rules, &configv1.SourceRule{
				Source: pick("consul", "file", "other", "ca", "*", "co*"), Instance: pick("", "", "a", "b", "*", "a*"),
				Kinds:      some("Gateway", "Service", "MeshPolicy", "MeshConfig", "TrustBundle", "Pod", "New", "*", "S*", "*e", "Mesh*"),
				Namespaces: some("", "shop", "pay", "*", "s*", "x.y"),
				Hosts:      some("*.consul"),
			})
		}
		source := pick("consul", "file", "other", "ca", "jwks")
		of := ident.Shard{Source: source, Instance: pick("", "a", "ab", "z")}
		home := ident.Shard{Source: pick("consul", "file"), Instance: pick("a", "ab", "z")}
		permits := New(rules, "cluster.local", home)
		reach := permits.Reach(of)
		for range objects {
			k := ident.Key{
				Source: source, Instance: of.Instance, Name: "x",
				Kind:      pick("Gateway", "Service", "ServiceEntry", "MeshPolicy", "MeshConfig", "Resource", "TrustBundle", "Jwks", "Pod", "New", "Sidecar", "S", "Unheard"),
				Namespace: pick("", "shop", "pay", "s", "x.y", "other"),
			}
			if of.Instance == "" {
				k.Instance = pick("a", "b", "ab", "z")
			}
			in := func(names []Names) bool {
				return slices.ContainsFunc(names, func(n Names) bool { return n.covers(Names{k.Instance, k.Kind, k.Namespace}) })
			}
			reached := in(reach.Allow) && !in(reach.Deny)
			say := func(what string) {
				t.Fatalf("seed %d: %s is %s; rules %v; allow %q, deny %q, only the fold: %v", seed, k, what, rules, text(reach.Allow), text(reach.Deny), reach.FoldOnly)
			}
			switch d := permits.Forbid(k, nil); {
			case d == nil && !reached:
				say("permitted and not reached")
			case d != nil && reached && len(reach.FoldOnly) == 0:
				say("forbidden and reached, and no part says so")
			case d == nil:
				permitted++
			case !reached:
				refused++
			}
		}
		for _, n := range reach.Allow {
			if of.Instance != "" && n.Instance != of.Instance {
				t.Fatalf("seed %d: reaches another instance than %s: %q", seed, of, text(reach.Allow))
			}
		}
		if len(reach.FoldOnly) == 0 {
			exact++
		}
	}
	t.Logf("%d objects permitted, %d out of reach; %d of %d policies are expressed whole", permitted, refused, exact, policies)
	if permitted < policies || refused < policies || exact < policies/10 {
		t.Error("the random policies try too little")
	}
}
