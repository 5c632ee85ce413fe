package secret_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds/secret"
)

// grants returns a ReferenceGrant of namespace other.
func grants(from, to string) string {
	return `---
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: grant, namespace: other}
spec: {from: [` + from + `], to: [` + to + `]}
`
}

const (
	gatewaysOfEdge = `{group: gateway.networking.k8s.io, kind: Gateway, namespace: edge}`
	secrets        = `{group: "", kind: Secret}`
)

// SDS-4: a credential of another namespace needs a ReferenceGrant of that namespace for the
// kind and the namespace of the object that names it. Without one, nothing is told of it.
func TestGranted(t *testing.T) {
	cert, key := pair(t)
	data := map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": cert}
	objects := []meshtest.Change{
		object(t, "other", "shop", data, revealing), object(t, "other", "two", data, revealing),
		object(t, "other", "shop-cacert", map[string][]byte{"ca.crt": cert}, revealing),
	}
	const named = "kubernetes-gateway://other/shop"
	for name, test := range map[string]struct {
		tls, grant string
		want       []string // without ROOTCA; none: it is refused
	}{
		"all of the kind":      {`{mode: SIMPLE, credentialName: "` + named + `"}`, grants(gatewaysOfEdge, secrets), []string{named}},
		"by name":              {`{mode: SIMPLE, credentialName: "` + named + `"}`, grants(gatewaysOfEdge, `{group: "", kind: Secret, name: shop}`), []string{named}},
		"one of several":       {`{mode: SIMPLE, credentialName: "` + named + `"}`, grants(`{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: edge}, `+gatewaysOfEdge, `{group: "", kind: Service}, `+secrets), []string{named}},
		"mutual":               {`{mode: MUTUAL, credentialName: "` + named + `"}`, grants(gatewaysOfEdge, `{group: "", kind: Secret, name: shop}`), []string{named, named + "-cacert"}},
		"CAs only":             {`{mode: MUTUAL, serverCertificate: /c, privateKey: /k, caCertCredentialName: "` + named + `-cacert"}`, grants(gatewaysOfEdge, `{group: "", kind: Secret, name: shop-cacert}`), []string{"file-cert:/c~/k", named + "-cacert"}},
		"no grant":             {`{mode: SIMPLE, credentialName: "` + named + `"}`, "", nil},
		"another name":         {`{mode: SIMPLE, credentialName: "` + named + `"}`, grants(gatewaysOfEdge, `{group: "", kind: Secret, name: two}`), nil},
		"another namespace":    {`{mode: SIMPLE, credentialName: "` + named + `"}`, grants(`{group: gateway.networking.k8s.io, kind: Gateway, namespace: third}`, secrets), nil},
		"another kind":         {`{mode: SIMPLE, credentialName: "` + named + `"}`, grants(gatewaysOfEdge, `{group: "", kind: ConfigMap}`), nil},
		"another group":        {`{mode: SIMPLE, credentialName: "` + named + `"}`, grants(gatewaysOfEdge, `{group: example.com, kind: Secret}`), nil},
		"Istio's own Gateway":  {`{mode: SIMPLE, credentialName: "` + named + `"}`, grants(`{group: networking.istio.io, kind: Gateway, namespace: edge}`, secrets), nil},
		"grant of a third":     {`{mode: SIMPLE, credentialName: "` + named + `"}`, strings.Replace(grants(gatewaysOfEdge, secrets), "namespace: other}\nspec", "namespace: third}\nspec", 1), nil},
		"config map, no grant": {`{mode: MUTUAL, serverCertificate: /c, privateKey: /k, caCertCredentialName: "configmap://other/cas"}`, grants(gatewaysOfEdge, secrets), []string{"file-cert:/c~/k"}},
	} {
		t.Run(name, func(t *testing.T) {
			pc := meshtest.PushContext(t, append(slices.Clone(objects), meshtest.YAML(t, gateway("edge", test.tls)+test.grant)...)...)
			all, problems := made(t, pc, router)
			if got := slices.Sorted(maps.Keys(all)); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
			refused := !strings.Contains(strings.Join(test.want, " "), "other/")
			if refused != (len(problems) == 1 && strings.HasPrefix(problems[0].Reason, "no ReferenceGrant of namespace other lets namespace edge name ") &&
				strings.Contains(problems[0].Advice, "from kind Gateway of gateway.networking.k8s.io in namespace edge")) {
				t.Errorf("problems: %+v", problems)
			}
			// A grant is for objects of its namespace alone, wherever their proxies claim to be.
			for name := range all {
				if strings.Contains(name, "other/") {
					stranger := router
					stranger.Namespace = "third"
					if others, _ := made(t, pc, stranger); len(others) > 0 && others[name].Message != nil {
						t.Errorf("a router of another namespace may have %s", name)
					}
				}
			}
		})
	}
}

// A sidecar has a granted credential if a DestinationRule of its own namespace selects it
// and names the credential (SDS-4, DR-17).
func TestGrantedToRule(t *testing.T) {
	cert, key := pair(t)
	text := `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: s, namespace: edge}
spec: {hosts: [s.example.com], ports: [{number: 443, name: https, protocol: HTTPS}], resolution: DNS}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: r, namespace: edge}
spec:
  host: s.example.com
  workloadSelector: {matchLabels: {app: a}}
  trafficPolicy: {tls: {mode: MUTUAL, credentialName: "kubernetes-gateway://other/shop"}}
`
	for from, want := range map[string]bool{
		`{group: networking.istio.io, kind: DestinationRule, namespace: edge}`: true,
		gatewaysOfEdge: false,
	} {
		objects := append(meshtest.YAML(t, text+grants(from, secrets)), object(t, "other", "shop", map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": cert}, revealing))
		pc := meshtest.PushContext(t, objects...)
		all, problems := made(t, pc, index.Classify(pc, &proxy.Proxy{
			Type: proxy.Sidecar, Namespace: "edge", Labels: map[string]string{"app": "a"},
			Identity: proxy.Identity{TrustDomain: "cluster.local", Namespace: "edge", ServiceAccount: "a"},
		}).SDS)
		_, has := all["kubernetes-gateway://other/shop"]
		_, hasCAs := all["kubernetes-gateway://other/shop-cacert"]
		if has != want || hasCAs != want || want == (len(problems) > 0) {
			t.Errorf("granted to %s: %v, %+v", from, slices.Sorted(maps.Keys(all)), problems)
		}
	}
}

// Certificates that no grant permits are not compared, because that would tell of them.
func TestRefusedAreNotCompared(t *testing.T) {
	cert, key := pair(t)
	data := map[string][]byte{"tls.crt": cert, "tls.key": key}
	pc := meshtest.PushContext(t, append(meshtest.YAML(t, gateway("edge", `{mode: SIMPLE, credentialNames: [shop, "kubernetes-gateway://other/shop"]}`)),
		object(t, "edge", "shop", data, revealing), object(t, "other", "shop", data, revealing))...)
	if _, problems := made(t, pc, router); len(problems) != 1 || !strings.Contains(problems[0].Reason, "no ReferenceGrant") {
		t.Errorf("got %+v", problems)
	}
}

// What a refused secret is made of is the grants of its namespace, and not the Secret.
func TestGrantedInputs(t *testing.T) {
	pc := meshtest.PushContext(t, meshtest.YAML(t, gateway("edge", `{mode: SIMPLE, credentialName: "kubernetes-gateway://other/shop"}`))...)
	parts := secret.Parts(pc.Read(), router)
	r := pc.Read()
	parts[1].Make(r)
	if want := []index.Input{{Kind: index.InputGrants, A: "other"}}; !slices.Equal(r.Inputs(), want) {
		t.Errorf("got %v, want %v", r.Inputs(), want)
	}
}
