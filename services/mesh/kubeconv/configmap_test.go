package kubeconv_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	corev1 "k8s.io/api/core/v1"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kubeconv"
	"meshlog.dev/services/mesh/problem"
)

// undecoded decodes an Undecoded payload.
func undecoded(t *testing.T, p ident.Value) *registryv1.Undecoded {
	t.Helper()
	var u registryv1.Undecoded
	if p.Type != ident.Undecoded {
		t.Fatalf("payload is a %s, want an Undecoded", p.Type)
	}
	if err := proto.Unmarshal(p.Bytes, &u); err != nil {
		t.Fatal(err)
	}
	return &u
}

// settings is the object of a kind that a ConfigMap contains.
type settings struct {
	kind, origin string
	payload      ident.Value
}

// settingsIn returns the settings in a ConfigMap, the MeshConfig first.
func settingsIn(t *testing.T, c *corev1.ConfigMap) []settings {
	t.Helper()
	var all []settings
	for _, name := range []string{"MeshConfig", "MeshNetworks"} {
		k := mustKind(t, name)
		if k.Only != "default" {
			t.Errorf("%s is named %q", name, k.Only)
		}
		if p, origin, ok := kubeconv.Mesh(k, c); ok {
			all = append(all, settings{name, origin, p})
		}
	}
	return all
}

// message decodes settings, which must be valid.
func (s settings) message(t *testing.T) proto.Message {
	t.Helper()
	m, err := mustKind(t, s.kind).Decode(s.payload.Type, s.payload.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestConfigMap checks that a payload has all data of a ConfigMap and nothing else.
func TestConfigMap(t *testing.T) {
	c := read[corev1.ConfigMap](t, `
metadata: {name: ca, namespace: prod, labels: {a: b}, resourceVersion: "7"}
data: {ca.crt: certificate, b: "1"}
binaryData: {x: AAEC}
`)
	wantText(t, kubeconv.ConfigMap(c), `api_version: "v1" kind: "ConfigMap" json: '{"binaryData":{"x":"AAEC"},"data":{"b":"1","ca.crt":"certificate"}}'`)
}

// TestPrivateKey checks that no payload contains a private key.
func TestPrivateKey(t *testing.T) {
	const key = "-----BEGIN EC PRIVATE KEY-----\nabc\n-----END EC PRIVATE KEY-----\n"
	c := read[corev1.ConfigMap](t, "metadata: {name: x, namespace: prod}")
	c.Data = map[string]string{"key.pem": key, "mesh": "accessLogFile: |\n  " + strings.ReplaceAll(key, "\n", "\n  ")}
	payloads := []ident.Value{payload(t, &kubeconv.Converter{}, "ConfigMap", c)}
	for _, s := range settingsIn(t, c) {
		payloads = append(payloads, s.payload)
	}
	filter := unstructured(t, "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {name: x, namespace: prod}\nspec: {configPatches: [{patch: {value: {a: b}}}]}")
	patch := filter.Object["spec"].(map[string]any)["configPatches"].([]any)[0].(map[string]any)["patch"].(map[string]any)
	patch["value"] = map[string]any{"private_key": key}
	payloads = append(payloads, payload(t, &kubeconv.Converter{}, "EnvoyFilter", filter))
	for i, p := range payloads {
		u := undecoded(t, p)
		if !strings.Contains(u.GetError(), "holds a private key") || strings.Contains(string(p.Bytes), "abc") {
			t.Errorf("payload %d: %v", i, u)
		}
	}
}

// TestMesh checks that the two keys of Istio's ConfigMap make two objects. Each is valid or
// invalid by itself, and an error has its line.
func TestMesh(t *testing.T) {
	of := func(data string) []settings {
		return settingsIn(t, read[corev1.ConfigMap](t, "metadata: {name: istio, namespace: istio-system}\n"+data))
	}

	docs := of(`
data:
  mesh: |-
    # Istio's defaults
    accessLogFile: /dev/stdout
    connectTimeout: 5s
    defaultConfig:
      discoveryAddress: istiod.istio-system.svc:15012
    rootNamespace: istio-system
  meshNetworks: |-
    networks:
      network1:
        endpoints:
        - fromRegistry: cluster1
        gateways:
        - address: 203.0.113.1
          port: 15443
`)
	if len(docs) != 2 {
		t.Fatalf("settings of %d kinds", len(docs))
	}
	wantText(t, docs[0].message(t), `
access_log_file: "/dev/stdout" connect_timeout {seconds: 5} root_namespace: "istio-system"
default_config {discovery_address: "istiod.istio-system.svc:15012"}`)
	wantText(t, docs[1].message(t), `
networks {key: "network1" value {endpoints {from_registry: "cluster1"} gateways {address: "203.0.113.1" port: 15443}}}`)
	if got, want := docs[0].origin, "ConfigMap istio-system/istio, mesh:1"; got != want {
		t.Errorf("origin %q, want %q", got, want)
	}

	docs = of("data: {mesh: '', meshNetworks: 'networks: {}'}")
	wantText(t, docs[0].message(t), ``)
	wantText(t, docs[1].message(t), ``)
	if docs = of("data: {other: x}"); len(docs) != 0 {
		t.Errorf("a ConfigMap without the keys has %v", docs)
	}

	for _, c := range []struct{ mesh, field, reason, origin string }{
		{"connectTimeout: 5s\ndefaultConfig:\n  nonsense: 1", "spec.defaultConfig.nonsense", `unknown field "nonsense"`, "mesh:3"},
		{"a: [", "", "", "mesh:1"},
		{"just a text", "spec", "is a text, not a mapping", "mesh:1"},
		{"a: 1\n---\nb: 2", "", "there is more than one document", "mesh:2"},
		{"\n\nconnectTimeout: soon", "spec.connectTimeout", "", "mesh:3"},
	} {
		d := settingsIn(t, &corev1.ConfigMap{Data: map[string]string{"mesh": c.mesh}})[0]
		u := undecoded(t, d.payload)
		if u.GetField() != c.field || !strings.Contains(u.GetError(), c.reason) || !strings.HasSuffix(d.origin, c.origin) || string(u.GetData()) != c.mesh {
			t.Errorf("%q: %s: %s: %s", c.mesh, d.origin, u.GetField(), u.GetError())
		}
	}
	invalid := settingsIn(t, &corev1.ConfigMap{Data: map[string]string{"mesh": "accessLogFile: x\nconnectTimeout: -1s"}})[0]
	if invalid.payload.Type == ident.Undecoded || !strings.HasSuffix(invalid.origin, "mesh:2") {
		t.Errorf("an invalid MeshConfig is a %s with origin %s", invalid.payload.Type, invalid.origin)
	}
}

// TestMeshOfIstio checks that the ConfigMap of an Istio installation is valid.
func TestMeshOfIstio(t *testing.T) {
	c := read[corev1.ConfigMap](t, `
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |-
    accessLogFile: /dev/stdout
    defaultConfig:
      discoveryAddress: istiod.istio-system.svc:15012
      proxyMetadata: {}
      tracing:
        zipkin:
          address: zipkin.istio-system:9411
    defaultProviders:
      metrics:
      - prometheus
    enablePrometheusMerge: true
    extensionProviders:
    - envoyOtelAls:
        port: 4317
        service: opentelemetry-collector.observability.svc.cluster.local
      name: otel
    outboundTrafficPolicy:
      mode: REGISTRY_ONLY
    rootNamespace: istio-system
    trustDomain: cluster.local
  meshNetworks: 'networks: {}'
`)
	for _, d := range settingsIn(t, c) {
		for _, p := range mustKind(t, d.kind).Validate("", d.message(t)) {
			if p.Severity == problem.Error {
				t.Errorf("%s: %+v", d.origin, p)
			}
		}
	}
}
