package kind_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
)

// A policy that cannot be read denies what it selects, as far as that can be read,
// else its namespace (POL-15).
func TestClosed(t *testing.T) {
	const head = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: p, namespace: n}\n"
	app := &registryv1.Closed{MatchLabels: map[string]string{"app": "a"}}
	gateway := &registryv1.Closed{Targets: []*registryv1.Closed_Target{{Kind: "Gateway", Name: "g"}}}
	all := &registryv1.Closed{}
	for name, test := range map[string]struct {
		kind, text string
		want       *registryv1.Closed
	}{
		"unknown field":              {"AuthorizationPolicy", head + "spec: {selector: {matchLabels: {app: a}}, rule: []}", app},
		"unknown action":             {"AuthorizationPolicy", head + "spec: {action: PERMIT, selector: {matchLabels: {app: a}}}", app},
		"JSON":                       {"RequestAuthentication", `{"apiVersion": "security.istio.io/v1", "kind": "RequestAuthentication", "metadata": {"name": "p"}, "spec": {"selector": {"matchLabels": {"app": "a"}}, "x": 1}}`, app},
		"targets":                    {"AuthorizationPolicy", head + "spec: {targetRefs: [{kind: Gateway, name: g}], x: 1}", gateway},
		"one target":                 {"AuthorizationPolicy", head + "spec: {targetRef: {kind: Gateway, name: g}, x: 1}", gateway},
		"an unreadable selector":     {"AuthorizationPolicy", head + "spec: {selector: {matchLabel: {app: a}}}", all},
		"a selector of another type": {"PeerAuthentication", head + "spec: {selector: [app]}", all},
		"no YAML":                    {"AuthorizationPolicy", head + "spec: {", all},
		"nothing":                    {"AuthorizationPolicy", "", all},
		"a kind that fails open":     {"VirtualService", head + "spec: {x: 1}", nil},
	} {
		t.Run(name, func(t *testing.T) {
			k, _ := kind.ByName(test.kind)
			v, ok := k.Closed(kind.Undecoded([]byte(test.text), "application/yaml", &problem.Diagnostic{Reason: "bad"}))
			if ok != (test.want != nil) {
				t.Fatalf("fails closed: %v", ok)
			}
			if !ok {
				if _, err := k.Decode(ident.Closed, nil); err == nil {
					t.Error("a closed value of the kind is decoded")
				}
				return
			}
			m, err := k.Decode(v.Type, v.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(proto.Message(test.want), m, protocmp.Transform()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if ds := k.Validate("n", m); len(ds) > 0 {
				t.Errorf("it is not good: %v", ds)
			}
		})
	}
}
