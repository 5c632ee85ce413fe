package policy_test

import (
	"bytes"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
	"sigs.k8s.io/yaml"

	"meshlog.dev/deploy/testkit/goldentest"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds/policy"
)

var update = flag.Bool("update", false, "rewrite the output in testdata")

// Each archive in testdata shows a row: a mesh, and the filters that ask about what CUSTOM
// policies of a sidecar in namespace shop match, for requests and for connections. An
// input may begin with the comment "# router".
func TestCustom(t *testing.T) {
	goldentest.Pairs(t, *update, "filters", func(t *testing.T, _ string, input []byte) string {
		objects := YAML(t, string(input))
		p := &proxy.Proxy{Type: proxy.Sidecar, Namespace: "shop"}
		if bytes.HasPrefix(input, []byte("# router\n")) {
			p.Type = proxy.Router
			objects = append(objects, Object("Gateway", "shop", "gw", &networking.Gateway{}))
		}
		pc := PushContext(t, objects...)
		class := index.Classify(pc, p)
		http, ds := customSlot(t, pc, class.ECDS)
		filters, more := policy.OfConnections(class.LDS).Filters(pc.Read())
		var tcp proto.Message
		for _, f := range filters {
			if f.GetName() == policy.Custom {
				m, err := f.GetTypedConfig().UnmarshalNew()
				if err != nil {
					t.Fatal(err)
				}
				tcp = m
			}
		}
		var out strings.Builder
		for _, f := range []struct {
			name     string
			filter   proto.Message
			problems []problem.Diagnostic
		}{{"requests", http, ds}, {"connections", tcp, more}} {
			if err := f.filter.(interface{ ValidateAll() error }).ValidateAll(); err != nil {
				t.Error(err)
			}
			fmt.Fprintf(&out, "%s: %s\n", f.name, f.filter.ProtoReflect().Descriptor().FullName())
			out.WriteString("  " + strings.ReplaceAll(strings.TrimSpace(readable(t, f.filter)), "\n", "\n  ") + "\n")
			slices.SortFunc(f.problems, problem.Diagnostic.Compare)
			for _, d := range f.problems {
				fmt.Fprintf(&out, "  # %s %s: %s\n  #   to do: %s\n  #   meanwhile: %s\n", d.Severity, d.Key, d.Reason, d.Advice, d.Effect)
			}
		}
		return out.String()
	})
}

// customSlot makes the content of the slot of authorizers.
func customSlot(t *testing.T, pc *index.PushContext, class index.ECDSClass) (proto.Message, []problem.Diagnostic) {
	t.Helper()
	for _, part := range policy.Parts(pc.Read(), class) {
		pieces, ds := part.Make(pc.Read())
		if pieces[0].Name != policy.Custom {
			continue
		}
		m, err := pieces[0].Message.(*corev3.TypedExtensionConfig).GetTypedConfig().UnmarshalNew()
		if err != nil {
			t.Fatal(err)
		}
		return m, ds
	}
	t.Fatal("there is no slot of authorizers")
	return nil, nil
}

func readable(t *testing.T, m proto.Message) string {
	t.Helper()
	text, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	out, err := yaml.JSONToYAML(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

const oneProvider = `
apiVersion: mesh.istio.io/v1alpha1
kind: MeshConfig
metadata: {name: default}
spec: {extensionProviders: [{name: one, envoyExtAuthzHttp: {service: SERVICE, port: 80}}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: p, namespace: istio-system}
spec: {action: CUSTOM, provider: {name: one}, rules: [{}]}
---
`

const entry = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: NAMESPACE, namespace: NAMESPACE}
spec: {hosts: [HOST], exportTo: [EXPORT], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}]}
---
`

// The slot is made again if, and only if, the services of the authorizer's host change,
// and each namespace's proxies ask the authorizer that is meant, or none.
func TestCustomFollowsServices(t *testing.T) {
	of := func(namespace, host, export string) string {
		return strings.NewReplacer("NAMESPACE", namespace, "HOST", host, "EXPORT", fmt.Sprintf("%q", export)).Replace(entry)
	}
	imports := func(hosts string) string { // SC-2
		return "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: default, namespace: shop}\nspec: {egress: [{hosts: [" + hosts + "]}]}\n---\n"
	}
	for _, test := range []struct {
		name, service string
		steps         []string // the services
		asks          []string // the namespaces, of shop and attic, whose proxies ask
	}{
		{"any", "auth.example", []string{"", of("istio-system", "auth.example", "*"), of("istio-system", "auth.example", "*") + of("attic", "auth.example", ".")}, []string{"", "shop attic", ""}},
		{"of a namespace", "istio-system/auth.example", []string{
			of("attic", "auth.example", "*"), of("istio-system", "auth.example", "*"), of("istio-system", "auth.example", "*") + of("attic", "auth.example", "."),
		}, []string{"", "shop attic", "shop"}},
		{"private", "istio-system/auth.example", []string{of("istio-system", "auth.example", "."), of("istio-system", "auth.example", "attic")}, []string{"", "attic"}},
		{"what a Sidecar does not import", "istio-system/auth.example", []string{
			of("istio-system", "auth.example", "*") + imports(`"./*"`), of("istio-system", "auth.example", "*") + imports(`"istio-system/*"`),
		}, []string{"attic", "shop attic"}},
		{"elsewhere", "auth.example", []string{
			of("istio-system", "auth.example", "*"), of("istio-system", "auth.example", "*") + of("attic", "other.example", "."), of("istio-system", "auth.example", "*"),
		}, []string{"shop attic", "shop attic", "shop attic"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			pc := PushContext(t)
			var before []Change
			made := map[index.ECDSClass]made{}
			for i, services := range test.steps {
				after := YAML(t, strings.ReplaceAll(oneProvider, "SERVICE", test.service)+strings.Trim(services, "-\n"))
				var keys []ident.Key
				for _, c := range append(before, after...) {
					keys = append(keys, c.Key())
				}
				next, inputs := pc.Next(World(t, after...), keys)
				pc, before = next, after
				var asks []string
				for _, ns := range []string{"shop", "attic"} {
					class := index.Classify(pc, &proxy.Proxy{Type: proxy.Sidecar, Namespace: ns}).ECDS
					m := makeCustom(t, pc, class)
					if m.asks {
						asks = append(asks, ns)
					} else if len(m.problems) != 1 || m.problems[0].Severity != problem.Error {
						t.Errorf("step %d: %s asks nobody, and the problems are %v", i, ns, m.problems)
					}
					stale := slices.ContainsFunc(made[class].inputs, func(in index.Input) bool { return slices.Contains(inputs, in) })
					if was, known := made[class]; known && !stale && was.text != m.text {
						t.Errorf("step %d: the slot of %s changed and none of its inputs did", i, ns)
					}
					made[class] = m
					if !slices.ContainsFunc(pc.Classes(), func(c index.ProxyClass) bool {
						return c.ECDS.Services == class.Services && c.ECDS.Selected == class.Selected && c.ECDS.Scope.Imports == class.Scope.Imports
					}) {
						t.Errorf("step %d: the gate does not check the class %+v", i, class)
					}
				}
				if got := strings.Join(asks, " "); got != test.asks[i] {
					t.Errorf("step %d: the authorizer is asked by %q, want %q", i, got, test.asks[i])
				}
			}
		})
	}
}

type made struct {
	asks     bool
	text     string
	problems []problem.Diagnostic
	inputs   []index.Input
}

func makeCustom(t *testing.T, pc *index.PushContext, class index.ECDSClass) made {
	t.Helper()
	r := pc.Read()
	for _, part := range policy.Parts(r, class) {
		pieces, ds := part.Make(r)
		if pieces[0].Name == policy.Custom {
			text := readable(t, pieces[0].Message)
			return made{strings.Contains(text, "ext_authz.v3"), text, ds, r.Inputs()}
		}
	}
	t.Fatal("there is no slot of authorizers")
	return made{}
}

// Proxies of namespaces with services of their own share a class while no policy that
// selects them has the action CUSTOM.
func TestClassWithoutCustom(t *testing.T) {
	own := strings.NewReplacer("NAMESPACE", "attic", "HOST", "own.example", "EXPORT", `"."`).Replace(strings.Trim(entry, "-\n"))
	of := func(action security.AuthorizationPolicy_Action) Change {
		return Object("AuthorizationPolicy", "attic", "p", &security.AuthorizationPolicy{Action: action, Rules: []*security.Rule{{}}})
	}
	p := &proxy.Proxy{Type: proxy.Sidecar, Namespace: "attic"}
	deny := PushContext(t, append(YAML(t, own), of(security.AuthorizationPolicy_DENY))...)
	if c := index.Classify(deny, p).ECDS; c.Services != "" {
		t.Errorf("DENY: the class is %+v", c)
	}
	custom := of(security.AuthorizationPolicy_CUSTOM)
	next, _ := deny.Next(World(t, append(YAML(t, own), custom)...), []ident.Key{custom.Key()})
	if c := index.Classify(next, p).ECDS; c.Services != "attic" || deny.SameClasses(next) {
		t.Errorf("CUSTOM: the class is %+v; the same classes: %v", c, deny.SameClasses(next))
	}
}
