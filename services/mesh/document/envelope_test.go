package document_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/tools/txtar"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/document"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/manifest"
	"meshlog.dev/services/mesh/problem"
)

// objects has an object of each kind that a document may hold and whose conversion
// leaves something out.
const objects = `
apiVersion: v1
kind: Service
metadata:
  name: all
  namespace: shop
  creationTimestamp: "2026-01-31T12:00:00Z"
  labels: {app: shop}
  annotations:
    networking.istio.io/exportTo: "., other"
    alpha.istio.io/kubernetes-serviceaccounts: "a,b"
    alpha.istio.io/canonical-serviceaccounts: "spiffe://x/a"
    traffic.istio.io/nodeSelector: '{"edge": "yes"}'
    other: left out
spec:
  type: NodePort
  selector: {app: shop}
  clusterIPs: [10.0.0.1, "fd00::1"]
  externalIPs: [192.0.2.9, 192.0.2.1]
  publishNotReadyAddresses: true
  internalTrafficPolicy: Local
  trafficDistribution: PreferClose
  ports:
  - {name: http, port: 80, targetPort: web, protocol: TCP, nodePort: 31000, appProtocol: http2}
  - {name: dns, port: 53, targetPort: 5353, protocol: UDP}
---
apiVersion: v1
kind: Service
metadata: {name: headless, namespace: shop}
spec: {clusterIP: None, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: alias, namespace: shop}
spec: {type: ExternalName, externalName: shop.example., ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: a, namespace: shop, labels: {kubernetes.io/service-name: shop, other: left-out}}
addressType: IPv4
ports: [{name: http, port: 8080, appProtocol: http}, {port: 1}]
endpoints:
- {addresses: [10.0.0.1], nodeName: n1, zone: z, hostname: h, targetRef: {kind: Pod, name: web-1}}
- {addresses: [10.0.0.2], conditions: {ready: false, serving: true, terminating: true}}
- {addresses: [10.0.0.3], conditions: {ready: false}}
- {addresses: [10.0.0.4], conditions: {ready: true, serving: true}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: b, namespace: shop}
addressType: IPv6
endpoints: [{addresses: ["fd00::1"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, labels: {app: web, topology.istio.io/network: n, security.istio.io/tlsMode: istio, istio-locality: r.z.s}}
spec:
  nodeName: n1
  serviceAccountName: web
  hostNetwork: true
  containers: [{name: a, image: b, ports: [{name: http, containerPort: 8080}, {name: admin, containerPort: 1}]}]
status:
  phase: Running
  podIPs: [{ip: 10.0.0.1}, {ip: "fd00::1"}]
  conditions: [{type: Ready, status: "True"}]
---
apiVersion: v1
kind: Pod
metadata: {name: ends, namespace: shop, deletionTimestamp: "2026-01-31T12:00:00Z"}
status: {podIP: 10.0.0.1, conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: starts, namespace: shop}
status: {podIP: 10.0.0.1}
---
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/zone: z}}
status: {addresses: [{type: ExternalIP, address: 192.0.2.1}, {type: InternalIP, address: 10.0.0.1}]}
---
apiVersion: v1
kind: Node
metadata: {name: n2}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {a: b}, annotations: {istio.io/x: z, other: left out}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web, namespace: shop}
spec: {rules: [{host: web.example}]}
---
apiVersion: gateway.networking.k8s.io/v1beta1
kind: Gateway
metadata: {name: web, namespace: shop, labels: {a: b}}
spec: {gatewayClassName: istio, listeners: [{name: http, port: 80, protocol: HTTP}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: dry, namespace: shop, annotations: {istio.io/dry-run: "true"}}
spec: {action: DENY, rules: [{to: [{operation: {methods: [GET]}}]}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: odd, namespace: shop, annotations: {istio.io/dry-run: maybe}}
spec: {}
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: keys, namespace: shop, annotations: {meshlog.dev/jwks: envoy}}
spec: {jwtRules: [{issuer: a, jwksUri: "http://idp.shop.svc.cluster.local/keys"}]}
---
apiVersion: mesh.istio.io/v1alpha1
kind: MeshConfig
metadata: {name: default}
spec: {trustDomain: example, connectTimeout: 250ms}
---
apiVersion: networking.istio.io/v1alpha3
kind: VirtualService
metadata: {name: numbers, namespace: shop}
spec:
  hosts: ["yes", "1e3.example"]
  http: [{timeout: 1m30s, route: [{destination: {host: a, port: {number: 80}}, weight: 100}], fault: {abort: {httpStatus: 503, percentage: {value: 0.1}}}}]
`

// API-4: what Of makes of a value is a document from which Read reads the same value, in
// JSON and in YAML.
func TestOf(t *testing.T) {
	texts := map[string][]byte{"objects": []byte(objects)}
	files, err := filepath.Glob(filepath.Join("testdata", "*.txt*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts[file] = b
		for _, f := range txtar.Parse(b).Files {
			texts[file+"/"+f.Name] = f.Data
		}
	}
	n := 0
	for name, text := range texts {
		for _, d := range manifest.Parse(text) {
			o, bad := document.Read(&d)
			if bad != nil {
				if name == "objects" {
					t.Errorf("line %d: %v", d.Line, bad)
				}
				continue
			}
			n++
			k, v := valueOf(t, &d, o)
			fields, err := document.Of(k, v)
			if err != nil {
				t.Errorf("%s, line %d: %v", name, d.Line, err)
				continue
			}
			asJSON, err := json.Marshal(fields)
			if err != nil {
				t.Fatal(err)
			}
			asYAML, err := document.YAML(fields)
			if err != nil {
				t.Fatal(err)
			}
			for _, again := range [][]byte{asJSON, asYAML} {
				docs := manifest.Parse(again)
				if len(docs) != 1 {
					t.Fatalf("%s: %d documents:\n%s", k, len(docs), again)
				}
				o, bad := document.Read(&docs[0])
				if bad != nil {
					t.Errorf("%s: %v:\n%s", k, bad, again)
					continue
				}
				kk, vv := valueOf(t, &docs[0], o)
				if kk != k || vv.Type != v.Type || !bytes.Equal(vv.Bytes, v.Bytes) || !vv.Created.Equal(v.Created) {
					t.Errorf("%s, line %d: %s is another value again:\n%s\n%v", name, d.Line, k, again, o.Message)
				}
			}
		}
	}
	if n < 30 {
		t.Errorf("only %d objects", n)
	}
}

func valueOf(t *testing.T, d *manifest.Document, o document.Object) (ident.Key, ident.Value) {
	t.Helper()
	b, err := o.Kind.Encode(o.Message)
	if err != nil {
		t.Fatal(err)
	}
	return ident.Key{Kind: o.Kind.Name, Namespace: o.Namespace, Name: o.Name}, ident.Value{Type: o.Kind.TypeOf(o.Message), Bytes: b, Created: d.Metadata.Created}
}

// What no document has is an error, and not a document that has something else.
func TestOfRefuses(t *testing.T) {
	undecoded := kind.Undecoded([]byte("x"), "text/plain", badValue())
	for name, v := range map[string]ident.Value{
		"undecoded": undecoded,
		"registry":  {Type: "type.googleapis.com/meshlog.registry.v1.Service", Bytes: registryService(t)},
	} {
		if f, err := document.Of(ident.Key{Kind: "Service", Namespace: "a", Name: "b"}, v); err == nil {
			t.Errorf("%s: %v", name, f)
		}
	}
	if f, err := document.Of(ident.Key{Kind: "Unknown"}, undecoded); err == nil {
		t.Errorf("an unknown kind: %v", f)
	}
}

func badValue() *problem.Diagnostic { return &problem.Diagnostic{Field: "spec", Reason: "bad"} }

// registryService returns the payload of a Service that names its host itself.
func registryService(t *testing.T) []byte {
	t.Helper()
	b, err := proto.Marshal(&registryv1.Service{Hostname: "a.consul"})
	if err != nil {
		t.Fatal(err)
	}
	return b
}
