package kubeconv_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"sigs.k8s.io/yaml"

	corev1 "k8s.io/api/core/v1"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/kubeconv"
)

// Each test is named after its row of ROWS.md in services/mesh/index.

// read returns an object as Kubernetes' clients do.
func read[T any](t testing.TB, text string) *T {
	t.Helper()
	o := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), o); err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	return o
}

// wantText compares m with a message in text form.
func wantText[M proto.Message](t *testing.T, m M, text string) {
	t.Helper()
	want := m.ProtoReflect().New().Interface()
	if err := prototext.Unmarshal([]byte(text), want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, proto.Message(m), protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// service converts a Service of namespace prod.
func service(t *testing.T, text string) *registryv1.Service {
	t.Helper()
	return kubeconv.Service(read[corev1.Service](t, "metadata: {name: web, namespace: prod}\n"+text), "")
}

func mustKind(t testing.TB, name string) *kind.Kind {
	t.Helper()
	k, ok := kind.ByName(name)
	if !ok {
		t.Fatalf("no kind %s", name)
	}
	return k
}

// payload returns the payload of an object, which must be published.
func payload(t testing.TB, c *kubeconv.Converter, name string, o any) ident.Value {
	t.Helper()
	p, ok := c.Payload(mustKind(t, name), o)
	if !ok {
		t.Fatalf("%s %+v has no payload", name, o)
	}
	return p
}

// TestSVC1Identity checks that the host consists of the key and the domain suffix, which is a
// setting of each cluster.
func TestSVC1Identity(t *testing.T) {
	s := read[corev1.Service](t, "metadata: {name: web, namespace: prod}\nspec: {ports: [{port: 80}]}")
	wantText(t, kubeconv.Service(s, ""), `ports {number: 80}`)
	wantText(t, kubeconv.Service(s, "west.example"), `domain_suffix: "west.example" ports {number: 80}`)
	var c kubeconv.Converter
	east := payload(t, &c, "Service", s)
	c.DomainSuffix = "west.example"
	if west := payload(t, &c, "Service", s); string(east.Bytes) == string(west.Bytes) {
		t.Error("the domain suffix of the cluster is not in the payload")
	}
}

// TestSVC2Addresses checks that virtual IPs of both families keep their order.
func TestSVC2Addresses(t *testing.T) {
	wantText(t, service(t, `spec: {clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1, "fd00::1"]}`), `addresses: ["10.0.0.1", "fd00::1"]`)
	wantText(t, service(t, `spec: {clusterIP: 10.0.0.1}`), `addresses: "10.0.0.1"`)
	wantText(t, service(t, `spec: {clusterIP: ""}`), ``) // Kubernetes has not assigned an IP yet
}

func TestSVC3Headless(t *testing.T) {
	wantText(t, service(t, `spec: {clusterIP: None, clusterIPs: [None], ports: [{port: 80}]}`), `headless: true ports {number: 80}`)
	wantText(t, service(t, `spec: {clusterIP: None}`), `headless: true`)
}

// TestSVC4ExternalName checks that only the name counts. Kubernetes allows a final dot, which a
// host never has.
func TestSVC4ExternalName(t *testing.T) {
	wantText(t, service(t, `spec: {type: ExternalName, externalName: db.example.com, clusterIP: None}`), `external_name: "db.example.com"`)
	wantText(t, service(t, `spec: {type: ExternalName, externalName: db.example.com.}`), `external_name: "db.example.com"`)
	wantText(t, service(t, `spec: {type: ClusterIP, externalName: ignored.example.com}`), ``)
}

// TestSVC7Protocol checks that the port's protocol is converted unchanged; builders interpret it
// and drop UDP.
func TestSVC7Protocol(t *testing.T) {
	wantText(t, service(t, `
spec:
  ports:
  - {port: 80, name: http-web, protocol: TCP}
  - {port: 81, name: api, appProtocol: kubernetes.io/h2c}
  - {port: 53, name: dns, protocol: UDP}
  - {port: 90, name: sig, protocol: SCTP}
`), `
ports {number: 80 name: "http-web"}
ports {number: 81 name: "api" app_protocol: "kubernetes.io/h2c"}
ports {number: 53 name: "dns" transport: "UDP"}
ports {number: 90 name: "sig" transport: "SCTP"}`)
}

// TestSVC8NoHint converts a port without a protocol hint.
func TestSVC8NoHint(t *testing.T) {
	wantText(t, service(t, `spec: {ports: [{port: 3306}]}`), `ports {number: 3306}`)
}

// TestSVC9TargetPort converts target ports by number and by name. A name refers to a port of each
// pod's containers, also of sidecar containers (restartPolicy: Always).
func TestSVC9TargetPort(t *testing.T) {
	wantText(t, service(t, `spec: {ports: [{port: 80, name: a, targetPort: 8080}, {port: 81, name: b, targetPort: web}]}`), `
ports {number: 80 name: "a" target_port: 8080}
ports {number: 81 name: "b" target_port_name: "web"}`)
	p := pod(t, `
spec:
  initContainers:
  - {name: setup, ports: [{name: setup, containerPort: 1}]}
  - {name: proxy, restartPolicy: Always, ports: [{name: metrics, containerPort: 15020}, {name: web, containerPort: 2}]}
  containers:
  - name: app
    ports: [{name: web, containerPort: 8080}, {containerPort: 8081}, {name: dns, containerPort: 53, protocol: UDP}]
  - {name: other, ports: [{name: web, containerPort: 9999}]}
`)
	want := map[string]uint32{"web": 8080, "metrics": 15020}
	if diff := cmp.Diff(want, p.Ports); diff != "" {
		t.Errorf("ports by name (-want +got):\n%s", diff)
	}
}

func TestSVC10InternalTrafficPolicy(t *testing.T) {
	wantText(t, service(t, `spec: {internalTrafficPolicy: Local}`), `internal_traffic_local: true`)
	wantText(t, service(t, `spec: {internalTrafficPolicy: Cluster}`), ``)
}

// TestSVC11TrafficDistribution checks that the field overrides the annotation, and that the
// annotation of a namespace is converted for its Services.
func TestSVC11TrafficDistribution(t *testing.T) {
	annotated := func(value, spec string) *registryv1.Service {
		return kubeconv.Service(read[corev1.Service](t,
			"metadata: {annotations: {networking.istio.io/traffic-distribution: "+value+"}}\nspec: "+spec), "")
	}
	for _, c := range []struct{ annotation, spec, want string }{
		{"PreferSameZone", "{}", "PreferSameZone"},
		{"PreferClose", "{}", "PreferSameZone"},
		{"PreferSameNode", "{}", "PreferSameNode"},
		{"Any", "{}", ""},
		{"nonsense", "{}", ""},
		{"PreferSameNode", "{trafficDistribution: PreferSameZone}", "PreferSameZone"},
	} {
		if got := annotated(c.annotation, c.spec).GetTrafficDistribution(); got != c.want {
			t.Errorf("annotation %s, spec %s: %q, want %q", c.annotation, c.spec, got, c.want)
		}
	}
	ns, err := kubeconv.Namespace(read[corev1.Namespace](t, "metadata: {name: prod, annotations: {networking.istio.io/traffic-distribution: PreferClose}}"))
	if err != nil {
		t.Fatal(err)
	}
	wantText(t, ns, `api_version: "v1" kind: "Namespace" json: "{\"metadata\":{\"annotations\":{\"networking.istio.io/traffic-distribution\":\"PreferClose\"}}}"`)
}

// TestSVC12PublishNotReady checks that the Service has the flag, and that endpoints have the
// readiness that Kubernetes reports: with the flag it reports unready and terminating ones as ready.
func TestSVC12PublishNotReady(t *testing.T) {
	wantText(t, service(t, `spec: {publishNotReadyAddresses: true}`), `publish_not_ready_addresses: true`)
	wantText(t, endpoints(t, nil, `
endpoints:
- {addresses: [10.0.0.1], conditions: {ready: true, serving: false, terminating: false}}
- {addresses: [10.0.0.2], conditions: {ready: true, serving: true, terminating: true}}
- {addresses: [10.0.0.3], conditions: {ready: false}}
`), `service: "web"
endpoints {addresses: "10.0.0.1" health: HEALTH_HEALTHY}
endpoints {addresses: "10.0.0.2" health: HEALTH_HEALTHY}
endpoints {addresses: "10.0.0.3" health: HEALTH_UNHEALTHY}`)
}

func TestSVC13ExportTo(t *testing.T) {
	s := read[corev1.Service](t, `metadata: {annotations: {networking.istio.io/exportTo: " ., other ,,"}}`)
	wantText(t, kubeconv.Service(s, ""), `export_to: [".", "other"]`)
}

// TestSVC14Identities checks that service accounts stay short names, which builders complete, and
// that other names are not changed.
func TestSVC14Identities(t *testing.T) {
	s := read[corev1.Service](t, `
metadata:
  annotations:
    alpha.istio.io/kubernetes-serviceaccounts: a, b
    alpha.istio.io/canonical-serviceaccounts: spiffe://other.example/ns/x/sa/y
`)
	wantText(t, kubeconv.Service(s, ""), `service_accounts: ["a", "b"] identities: "spiffe://other.example/ns/x/sa/y"`)
}

func TestSVC15SessionLabels(t *testing.T) {
	s := read[corev1.Service](t, `metadata: {labels: {istio.io/persistent-session: "cookie:/path"}}`)
	wantText(t, kubeconv.Service(s, ""), `labels {key: "istio.io/persistent-session" value: "cookie:/path"}`)
}

// TestSVC16Selector checks that a Service keeps its selector, which also selects WorkloadEntries.
func TestSVC16Selector(t *testing.T) {
	wantText(t, service(t, `spec: {selector: {app: web}}`), `selector {key: "app" value: "web"}`)
}

// TestSVC17Suppression checks that fields without an effect on proxies do not change the payload,
// and that another target port does.
func TestSVC17Suppression(t *testing.T) {
	const spec = "\nspec: {clusterIP: 10.0.0.1, ports: [{port: 80, targetPort: 8080}]}\n"
	var c kubeconv.Converter
	of := func(text string) string {
		return string(payload(t, &c, "Service", read[corev1.Service](t, text)).Bytes)
	}
	before := of("metadata: {name: web, resourceVersion: '1'}" + spec)
	for _, same := range []string{
		"metadata: {name: web, resourceVersion: '2', generation: 7, uid: x}" + spec,
		"metadata: {name: web, managedFields: [{manager: kubectl}]}" + spec,
		"metadata: {name: web, annotations: {kubectl.kubernetes.io/last-applied-configuration: '{}', meshlog.dev/traceparent: 00-1}}" + spec,
		"metadata: {name: web}\nspec: {clusterIP: 10.0.0.1, sessionAffinity: None, ipFamilyPolicy: SingleStack, ports: [{port: 80, targetPort: 8080}]}\n",
		"metadata: {name: web}" + spec + "status: {conditions: [{type: x, status: 'True', reason: r, message: m, lastTransitionTime: null}]}",
	} {
		if of(same) != before {
			t.Errorf("this object has another payload:\n%s", same)
		}
	}
	if of("metadata: {name: web}\nspec: {clusterIP: 10.0.0.1, ports: [{port: 80, targetPort: 8081}]}") == before {
		t.Error("another target port does not change the payload")
	}
}
