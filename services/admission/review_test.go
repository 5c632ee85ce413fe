package admission

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/document"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/manifest"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/trial"
)

const key = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0c2VjcmV0\n-----END PRIVATE KEY-----\n"

// managed is what an API server adds to an object.
const managed = `
  uid: 9f8f6c1e-0000-0000-0000-000000000000
  generation: 3
  resourceVersion: "77"
  creationTimestamp: "2026-01-01T00:00:00Z"
  managedFields: [{manager: kubectl, operation: Apply, apiVersion: v1, time: "2026-01-01T00:00:00Z", fieldsType: FieldsV1, fieldsV1: {"f:spec": {}}}]
`

func object(apiVersion, kind, spec string) string {
	return "apiVersion: " + apiVersion + "\nkind: " + kind + "\nmetadata:\n  name: x\n  namespace: demo" + managed + "spec:\n" + spec
}

func request(t *testing.T, op admissionv1.Operation, old, object string) *admissionv1.AdmissionRequest {
	t.Helper()
	r := &admissionv1.AdmissionRequest{UID: "1", Operation: op, Name: "x", Namespace: "demo"}
	for _, part := range []struct {
		text string
		to   *runtime.RawExtension
	}{{old, &r.OldObject}, {object, &r.Object}} {
		if part.text == "" {
			continue
		}
		b, err := yaml.YAMLToJSON([]byte(part.text))
		if err != nil {
			t.Fatal(err)
		}
		part.to.Raw = b
		var of metav1.TypeMeta
		if err := json.Unmarshal(b, &of); err != nil {
			t.Fatal(err)
		}
		gvk := of.GroupVersionKind()
		r.Kind = metav1.GroupVersionKind{Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind}
	}
	return r
}

const (
	vs      = "networking.istio.io/v1"
	good    = "  hosts: [shop.internal]\n  http: [{timeout: 2s, route: [{destination: {host: shop.internal}}]}]\n"
	bad     = "  hosts: [shop.internal]\n  http: [{timeout: -2s, route: [{destination: {host: shop.internal}}]}]\n"
	worse   = "  hosts: [shop.internal]\n  http: [{timeout: -3s, route: [{destination: {host: shop.internal}}]}]\n"
	unknown = "  hosts: [shop.internal]\n  httpp: []\n"
)

// ADM-1, ADM-6: an invalid object is refused with field, reason and what to do, one with
// a private key without the key; warnings refuse nothing.
func TestReview(t *testing.T) {
	for name, test := range map[string]struct {
		request *admissionv1.AdmissionRequest
		refused []string // parts of the message; nil: it is allowed
		warned  string
	}{
		"a valid object":   {request: request(t, admissionv1.Create, "", object(vs, "VirtualService", good))},
		"an invalid value": {request(t, admissionv1.Create, "", object(vs, "VirtualService", bad)), []string{"spec.http[0].timeout: ", "; to do: "}, ""},
		"an unknown field": {request(t, admissionv1.Create, "", object(vs, "VirtualService", unknown)), []string{`spec.httpp: unknown field "httpp"`, "; to do: "}, ""},
		"what Envoy refuses": {request(t, admissionv1.Create, "", object(vs, "VirtualService",
			"  hosts: [a]\n  http: [{match: [{uri: {regex: \"(\"}}], redirect: {uri: /}}]\n")), []string{"spec.http[0].match[0].uri"}, ""},
		"no effect yet":      {request(t, admissionv1.Create, "", object("networking.istio.io/v1", "WorkloadGroup", "  template: {}\n")), nil, "has no effect yet"},
		"a delete":           {request: request(t, admissionv1.Delete, object(vs, "VirtualService", bad), "")},
		"it becomes invalid": {request(t, admissionv1.Update, object(vs, "VirtualService", good), object(vs, "VirtualService", bad)), []string{"spec.http[0].timeout"}, ""},
		"it stays invalid":   {request(t, admissionv1.Update, object(vs, "VirtualService", bad), object(vs, "VirtualService", worse)), []string{"spec.http[0].timeout"}, ""},
		"a label of an invalid one": {request(t, admissionv1.Update, object(vs, "VirtualService", bad),
			strings.Replace(object(vs, "VirtualService", bad), "  name: x", "  name: x\n  labels: {a: b}", 1)), nil, "unchanged, and so not refused: spec.http[0].timeout"},
		"an invalid one that is deleted": {request: request(t, admissionv1.Update, object(vs, "VirtualService", bad),
			strings.Replace(object(vs, "VirtualService", worse), "  name: x", "  name: x\n  deletionTimestamp: \"2026-01-01T00:00:00Z\"", 1))},
		"a private key": {request(t, admissionv1.Create, "", object(vs, "Gateway",
			"  servers: [{port: {number: 443, name: https, protocol: HTTPS}, hosts: [\"*\"], tls: {mode: SIMPLE, privateKey: \""+strings.ReplaceAll(key, "\n", `\n`)+"\"}}]\n")), []string{"spec.servers[0].tls.privateKey: holds a private key"}, ""},
		"a private key in an annotation": {request(t, admissionv1.Create, "",
			strings.Replace(object(vs, "VirtualService", good), "  name: x", "  name: x\n  annotations: {\"kubectl.kubernetes.io/last-applied-configuration\": \""+strings.ReplaceAll(key, "\n", `\n`)+"\"}", 1)), []string{"metadata.annotations", "holds a private key"}, ""},
		"a private key in base64, of an unknown field": {request(t, admissionv1.Create, "", object(vs, "VirtualService",
			"  hosts: [a]\n  x: LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0tCmMyVmpjbVYwYzJWamNtVjAKLS0tLS1FTkQgUFJJVkFURSBLRVktLS0tLQo=\n")), []string{"spec.x: holds a private key"}, ""},
		"no JSON": {&admissionv1.AdmissionRequest{Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: []byte("{")}}, []string{"is no object"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := Review(test.request)
			text, err := json.Marshal(got)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(text), "c2VjcmV0") || strings.Contains(string(text), "LS0tLS1CRUdJTi") {
				t.Errorf("the answer repeats the key: %s", text)
			}
			if got.Allowed != (test.refused == nil) {
				t.Fatalf("the answer is %s", text)
			}
			for _, want := range test.refused {
				if !strings.Contains(got.Result.Message, want) {
					t.Errorf("refused with %q, want %q in it", got.Result.Message, want)
				}
			}
			if test.refused != nil && (got.Result.Reason != metav1.StatusReasonInvalid || len(got.Result.Details.Causes) == 0) {
				t.Errorf("refused with %+v", got.Result)
			}
			if all := strings.Join(got.Warnings, "\n"); !strings.Contains(all, test.warned) || (test.warned == "") != (all == "") {
				t.Errorf("warnings %q, want %q", all, test.warned)
			}
		})
	}
}

// ADM-1: the webhook finds what the fold finds of the same object in a file.
func TestSameAsFold(t *testing.T) {
	specs := map[string][]string{
		"networking.istio.io/v1 VirtualService":      {good, bad, unknown, "  hosts: []\n", "  hosts: [a]\n  http: [{route: [{destination: {host: a}, weight: -1}]}]\n", "  hosts: 7\n"},
		"networking.istio.io/v1 DestinationRule":     {"  host: a\n", "  host: a\n  trafficPolicy: {loadBalancer: {simple: NOPE}}\n", "  host: a\n  trafficPolicy: {connectionPool: {http: {h2UpgradePolicy: 9}}}\n"},
		"networking.istio.io/v1 ServiceEntry":        {"  hosts: [a.example]\n  ports: [{number: 80, name: http, protocol: HTTP}]\n  resolution: DNS\n", "  hosts: [a.example]\n  ports: [{number: 0, name: http}]\n"},
		"networking.istio.io/v1 Gateway":             {"  servers: []\n", "  servers: [{hosts: [a], port: {number: 80, name: http, protocol: HTTP}}]\n"},
		"security.istio.io/v1 AuthorizationPolicy":   {"  action: DENY\n  rules: [{to: [{operation: {paths: [/admin]}}]}]\n", "  action: NEVER\n"},
		"envoy.meshlog.dev/v1 Resource":              {"  resource: {\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster, name: a}\n", "  resource: {\"@type\": x}\n"},
		"gateway.networking.k8s.io/v1 HTTPRoute":     {"  rules: [{backendRefs: [{name: a, port: 80}]}]\n"},
		"telemetry.istio.io/v1 Telemetry":            {"  {}\n", "  nope: 1\n"},
		"networking.istio.io/v1alpha3 WorkloadEntry": {"  address: 10.0.0.1\n", "  address: \"\"\n"},
	}
	for _, of := range slices.Sorted(maps.Keys(specs)) {
		apiVersion, kindName, _ := strings.Cut(of, " ")
		for _, spec := range specs[of] {
			r := request(t, admissionv1.Create, "", object(apiVersion, kindName, spec))
			o, err := fields(r.Object.Raw)
			if err != nil {
				t.Fatal(err)
			}
			var texts, want []string
			for _, p := range Problems(o) {
				texts = append(texts, p.Severity.String()+" "+p.Field+": "+p.Reason)
			}
			for _, p := range inFile(t, "apiVersion: "+apiVersion+"\nkind: "+kindName+"\nmetadata: {name: x, namespace: demo}\nspec:\n"+spec) {
				want = append(want, p.Severity.String()+" "+p.Field+": "+p.Reason)
			}
			slices.Sort(texts)
			slices.Sort(want)
			if !slices.Equal(texts, want) {
				t.Errorf("%s\n%sthe webhook finds %q, the fold %q", of, spec, texts, want)
			}
		}
	}
}

// inFile returns the problems of a document, as a builder finds them.
func inFile(t *testing.T, text string) []problem.Diagnostic {
	t.Helper()
	d := manifest.Parse([]byte(text))[0]
	o, bad := document.Read(&d)
	if bad != nil {
		return []problem.Diagnostic{*bad}
	}
	b, err := o.Kind.Encode(o.Message)
	if err != nil {
		t.Fatal(err)
	}
	_, problems, _ := fold.KindJudge{Trial: trial.Problems}.Judge(
		ident.Key{Source: "file", Instance: "default", Kind: o.Kind.Name, Namespace: o.Namespace, Name: o.Name}, ident.Value{Type: o.Kind.TypeOf(o.Message), Bytes: b})
	return problems
}

// ADM-6: the server answers an AdmissionReview, and neither its answers nor its log repeat
// what is in a request.
func TestServer(t *testing.T) {
	var log bytes.Buffer
	s := NewServer(slog.New(slog.NewTextHandler(&log, nil)), NewMetrics())
	ask := func(body string) (int, string) {
		w := httptest.NewRecorder()
		s.validate(w, httptest.NewRequest(http.MethodPost, Path, strings.NewReader(body)))
		return w.Code, w.Body.String()
	}
	r := request(t, admissionv1.Create, "", object(vs, "Gateway", "  servers: [{port: {number: 443, name: https, protocol: HTTPS}, hosts: [\"*\"], tls: {privateKey: \""+strings.ReplaceAll(key, "\n", `\n`)+"\"}}]\n"))
	b, err := json.Marshal(admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: r})
	if err != nil {
		t.Fatal(err)
	}
	code, answer := ask(string(b))
	var got admissionv1.AdmissionReview
	if err := json.Unmarshal([]byte(answer), &got); err != nil || code != http.StatusOK || got.Response == nil || got.Response.UID != "1" || got.Response.Allowed {
		t.Errorf("answered %d, %s", code, answer)
	}
	for _, body := range []string{"", "{}", `{"apiVersion":"admission.k8s.io/v1beta1","request":{}}`, key, strings.Repeat(" ", maxRequest+1)} {
		if code, said := ask(body); code != http.StatusBadRequest || strings.Contains(said, "c2VjcmV0") {
			t.Errorf("answered %d, %s", code, said)
		}
	}
	if text := log.String(); strings.Contains(text, "c2VjcmV0") || !strings.Contains(text, "refused an object") {
		t.Errorf("the log is %s", text)
	}
}

// The probe is refused for the field that is invalid in it.
func TestProbe(t *testing.T) {
	b, err := yaml.Marshal(Probe("meshlog"))
	if err != nil {
		t.Fatal(err)
	}
	got := Review(request(t, admissionv1.Create, "", string(b)))
	if got.Allowed || !strings.Contains(got.Result.Message, probeRefused) {
		t.Errorf("the answer is %+v", got)
	}
	if strings.Contains(string(b), "resourceVersion") {
		t.Errorf("the probe is %s", b)
	}
}
