package gate_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/gate"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/world"
)

// gated is a world whose changes go through a gate.
type gated struct {
	t     testing.TB
	gate  *gate.Gate
	world *world.World
}

func newGated(t testing.TB) *gated {
	return &gated{t: t, gate: gate.New(), world: world.NewWorld()}
}

// change applies changes and returns the objects and codes of all problems.
func (g *gated) change(changes ...meshtest.Change) []string {
	g.t.Helper()
	next, keys, err := g.world.Apply(meshtest.Rows(changes...))
	if err != nil {
		g.t.Fatal(err)
	}
	problems, err := g.gate.Build(next, keys)
	if err != nil {
		g.t.Fatal(err)
	}
	g.world = next
	var all []string
	for _, p := range problems {
		all = append(all, p.Key.Namespace+"/"+p.Key.Name+" "+p.Code)
	}
	slices.Sort(all)
	return all
}

// rule returns a DestinationRule that has the same subset several times.
func rule(namespace string, subsets int, exportTo ...string) meshtest.Change {
	r := &networking.DestinationRule{Host: "x.a.svc.cluster.local", ExportTo: exportTo}
	for range subsets {
		r.Subsets = append(r.Subsets, &networking.Subset{Name: "v1", Labels: map[string]string{"version": "v1"}})
	}
	return meshtest.Object("DestinationRule", namespace, "r", r)
}

// The gate reports problems that only generation finds before a version is
// published, also those that only one namespace sees.
func TestGateReportsProblemsOfGeneration(t *testing.T) {
	g := newGated(t)
	for _, step := range []struct {
		name    string
		changes []meshtest.Change
		want    []string
	}{
		{"a service", []meshtest.Change{meshtest.Service("a", "x", "80 http"), meshtest.Slice("a", "x", "80 http", "10.0.0.9")}, nil},
		{"a bad rule", []meshtest.Change{rule("a", 2)}, []string{"a/r conflict"}},
		{"another that one namespace sees", []meshtest.Change{rule("b", 2, ".")}, []string{"a/r conflict", "b/r conflict"}},
		{"the first is corrected", []meshtest.Change{rule("a", 1)}, []string{"b/r conflict"}},
		{"the second is removed", []meshtest.Change{rule("b", 1).Gone()}, nil},
	} {
		if diff := cmp.Diff(step.want, g.change(step.changes...)); diff != "" {
			t.Errorf("%s: problems (-want +got):\n%s", step.name, diff)
		}
	}
}

// A panic makes Build of one world fail, and does not affect the next one.
func TestGatePanic(t *testing.T) {
	g := newGated(t)
	g.change(meshtest.Service("a", "x", "80 http"))
	if _, err := g.gate.Build(nil, nil); err == nil {
		t.Error("Build of a nil world has no error")
	}
	if diff := cmp.Diff([]string{"a/r conflict"}, g.change(rule("a", 2))); diff != "" {
		t.Errorf("problems after the panic (-want +got):\n%s", diff)
	}
}

// MTLS-17: what gRPC servers do not do for a policy is reported only where a service of its
// namespace, for the root namespace of any, has a port for gRPC.
func TestGateReportsServers(t *testing.T) {
	g := newGated(t)
	policy := func(namespace string) string {
		return "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: watch, namespace: " + namespace + "}\nspec: {action: AUDIT, rules: [{}]}\n"
	}
	service := func(namespace, protocol string) []meshtest.Change {
		return meshtest.YAML(t, "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: s, namespace: "+namespace+"}\nspec: {hosts: ["+namespace+
			".example], resolution: STATIC, ports: [{number: 80, name: p, protocol: "+protocol+"}]}\n")
	}
	const shop, root = "shop/watch unsupported", "istio-system/watch unsupported"
	for _, step := range []struct {
		name    string
		changes []meshtest.Change
		want    []string
	}{
		{"no gRPC", append(service("shop", "HTTP"), meshtest.YAML(t, policy("shop")+"---\n"+policy("istio-system"))...), nil},
		{"elsewhere", service("cart", "GRPC"), []string{root}},
		{"here", service("shop", "GRPC"), []string{root, shop}},
		{"no more", append(service("shop", "HTTP"), service("cart", "HTTP2")...), nil},
	} {
		got := slices.DeleteFunc(g.change(step.changes...), func(p string) bool { return !strings.HasSuffix(p, " unsupported") })
		slices.Sort(got)
		if diff := cmp.Diff(step.want, slices.Compact(got), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
	}
}

// The gate reports authorizers that some proxy cannot ask, in whichever namespace it is
// (AZ-9).
func TestGateReportsAuthorizers(t *testing.T) {
	g := newGated(t)
	object := func(text string) []meshtest.Change { return meshtest.YAML(t, text) }
	auth := func(exportTo string) []meshtest.Change {
		return object(`
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: auth, namespace: istio-system}
spec: {hosts: [auth.example], exportTo: [` + exportTo + `], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}]}
`)
	}
	for _, step := range []struct {
		name    string
		changes []meshtest.Change
		want    []string
	}{
		{"no provider", object(`
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: ask, namespace: istio-system}
spec: {action: CUSTOM, provider: {name: auth}, rules: [{}]}
`), []string{"istio-system/ask provider"}},
		{"no service", object(`
apiVersion: mesh.istio.io/v1alpha1
kind: MeshConfig
metadata: {name: default}
spec: {extensionProviders: [{name: auth, envoyExtAuthzHttp: {service: istio-system/auth.example, port: 80}}]}
`), []string{"istio-system/ask provider"}},
		{"private", auth(`"."`), []string{"istio-system/ask provider"}},
		{"public", auth(`"*"`), nil},
		{"one namespace has a service of the same host", object(`
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: mine, namespace: attic}
spec: {hosts: [auth.example], exportTo: ["."], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}]}
`), []string{"istio-system/ask provider"}},
	} {
		got := slices.DeleteFunc(g.change(step.changes...), func(p string) bool {
			return strings.HasSuffix(p, " unenforced") || strings.HasSuffix(p, " unsupported")
		})
		if diff := cmp.Diff(step.want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
	}
}
