package kubeconv_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"sigs.k8s.io/yaml"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8s "k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"meshlog.dev/services/mesh/document"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/kubeconv"
	"meshlog.dev/services/mesh/manifest"
)

// unstructured returns an object as the dynamic client does.
func unstructured(t testing.TB, text string) *k8s.Unstructured {
	t.Helper()
	b, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	u := &k8s.Unstructured{}
	if err := u.UnmarshalJSON(b); err != nil {
		t.Fatal(err)
	}
	return u
}

const virtualService = `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata:
  name: web
  namespace: prod
  resourceVersion: "123"
  generation: 4
  uid: 4f9c0b1d
  creationTimestamp: "2026-01-31T12:00:00Z"
  managedFields: [{manager: argocd-controller, operation: Apply, time: "2026-01-31T12:00:00Z"}]
  annotations: {meshlog.dev/traceparent: 00-1-2-01, kubectl.kubernetes.io/last-applied-configuration: "{}"}
spec:
  hosts: [web.example.com]
  http:
  - timeout: 2s
    route: [{destination: {host: web, port: {number: 80}}, weight: 100}]
status:
  observedGeneration: 4
`

const httpRoute = `
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: prod, resourceVersion: "7", labels: {a: b}, annotations: {x: z, meshlog.dev/traceparent: 00-1-2-01}}
spec: {hostnames: [web.example.com], rules: [{backendRefs: [{name: web, port: 80, weight: 1}]}]}
status: {parents: []}
`

const ingress = `
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web, namespace: prod, generation: 2, annotations: {kubernetes.io/ingress.class: istio}}
spec: {rules: [{host: web.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]}
status: {loadBalancer: {ingress: [{ip: 203.0.113.1}]}}
`

// A dry run (AZ-8).
const dryRun = `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: p, namespace: prod, annotations: {istio.io/dry-run: "true"}}
spec: {action: DENY, rules: [{}]}
`

// Keys that proxies fetch (POL-13).
const proxyKeys = `
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: p, namespace: prod, annotations: {meshlog.dev/jwks: envoy}}
spec: {jwtRules: [{issuer: i, jwksUri: "http://issuer.auth/keys"}]}
`

// TestSameAsFile checks that an object has the same content from an API server and from a file.
func TestSameAsFile(t *testing.T) {
	for name, text := range map[string]string{"VirtualService": virtualService, "HTTPRoute": httpRoute, "Ingress": ingress, "AuthorizationPolicy": dryRun, "RequestAuthentication": proxyKeys} {
		docs := manifest.Parse([]byte(text))
		o, bad := document.Read(&docs[0])
		if bad != nil {
			t.Fatal(bad)
		}
		want, err := o.Kind.Encode(o.Message)
		if err != nil {
			t.Fatal(err)
		}
		p := payload(t, &kubeconv.Converter{}, name, unstructured(t, text))
		if diff := cmp.Diff(string(want), string(p.Bytes)); diff != "" || p.Type != o.Kind.TypeOf(o.Message) {
			t.Errorf("%s, a %s (-file +cluster):\n%s", name, p.Type, diff)
		}
	}
}

// REV-1: an object of another revision is not published. The label of a Namespace says
// which sidecars its pods get, and hides nothing.
func TestRevision(t *testing.T) {
	for revision, published := range map[string]bool{"": true, "new": true, "old": false} {
		c := &kubeconv.Converter{Revision: "new"}
		u := unstructured(t, virtualService)
		if revision != "" {
			u.SetLabels(map[string]string{kind.RevisionLabel: revision})
		}
		if _, ok := c.Payload(mustKind(t, "VirtualService"), u); ok != published {
			t.Errorf("revision %q: published %v, want %v", revision, ok, published)
		}
	}
	n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{kind.RevisionLabel: "old"}}}
	if _, ok := (&kubeconv.Converter{Revision: "new"}).Payload(mustKind(t, "Namespace"), n); !ok {
		t.Error("a Namespace with the label of another revision is hidden")
	}
}

// TestNoContent checks that metadata for the API server and its clients is not part of the
// payload, even if the object cannot be decoded.
func TestNoContent(t *testing.T) {
	for name, text := range map[string]string{
		"VirtualService": virtualService, "HTTPRoute": httpRoute, "Ingress": ingress,
		"DestinationRule": "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: x}\nspec: {nonsense: 1}",
	} {
		u := unstructured(t, text)
		before := payload(t, &kubeconv.Converter{}, name, u)
		u.SetResourceVersion("999")
		u.SetGeneration(999)
		u.SetManagedFields(nil)
		u.SetUID("other")
		annotations := u.GetAnnotations()
		delete(annotations, validate.TraceAnnotation)
		delete(annotations, validate.LastApplied)
		u.SetAnnotations(annotations)
		u.Object["status"] = map[string]any{"ready": true}
		if diff := cmp.Diff(before, payload(t, &kubeconv.Converter{}, name, u), protocmp.Transform()); diff != "" {
			t.Errorf("%s: the payload changed with the metadata:\n%s", name, diff)
		}
	}
}

// TestUnknownFields checks that an unknown field makes an Undecoded that names the field, as in
// files.
func TestUnknownFields(t *testing.T) {
	for _, c := range []struct{ was, is, field, reason string }{
		{"timeout: 2s", "timeuot: 2s", "spec.http[0].timeuot", `unknown field "timeuot"`},
		{"number: 80", "number: many", "spec.http[0].route[0].destination.port.number", "invalid value"},
		{"timeout: 2s", "timeout: soon", "spec.http[0].timeout", "soon"},
		{"status:", "extra:", "extra", "unknown field"},
	} {
		u := undecoded(t, payload(t, &kubeconv.Converter{}, "VirtualService", unstructured(t, strings.Replace(virtualService, c.was, c.is, 1))))
		if u.GetField() != c.field || !strings.Contains(u.GetError(), c.reason) || !strings.Contains(string(u.GetData()), "web.example.com") {
			t.Errorf("%s: %s: %s in %s", c.is, u.GetField(), u.GetError(), u.GetData())
		}
	}
}

// TestNoSpec checks that an object without spec is converted.
func TestNoSpec(t *testing.T) {
	p := payload(t, &kubeconv.Converter{}, "PeerAuthentication", unstructured(t, "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: prod}"))
	if p.Type != mustKind(t, "PeerAuthentication").TypeURL || len(p.Bytes) != 0 {
		t.Errorf("payload %+v", p)
	}
}
