package xds_test

import (
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds"
)

const encrypted = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gw, namespace: edge}
spec:
  servers:
  - {port: {number: 443, name: a, protocol: HTTPS}, hosts: [a.example.com], tls: {mode: SIMPLE, credentialNames: [a, b]}}
  - {port: {number: 443, name: b, protocol: HTTPS}, hosts: [b.example.com], tls: {mode: MUTUAL, credentialName: a, subjectAltNames: [c]}}
  - {port: {number: 443, name: c, protocol: HTTPS}, hosts: [c.example.com], tls: {mode: OPTIONAL_MUTUAL, credentialName: a, caCertCredentialName: "configmap://edge/cas"}}
  - {port: {number: 443, name: d, protocol: HTTPS}, hosts: [d.example.com], tls: {mode: ISTIO_MUTUAL}}
  - {port: {number: 443, name: e, protocol: TLS}, hosts: [e.example.com], tls: {mode: MUTUAL, serverCertificate: /c, privateKey: /k, caCertificates: /ca, caCrl: /crl}}
  - {port: {number: 444, name: f, protocol: TCP}, hosts: ["*"], tls: {mode: SIMPLE, credentialName: a}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: vs, namespace: edge}
spec: {hosts: ["*"], gateways: [gw], tcp: [{route: [{destination: {host: shop.internal}}]}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: shop, namespace: edge}
spec: {hosts: [shop.internal], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 192.0.2.1}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: shop, namespace: edge}
spec:
  host: shop.internal
  trafficPolicy: {tls: {mode: MUTUAL, credentialName: client}}
  subsets: [{name: v1, trafficPolicy: {tls: {mode: SIMPLE, credentialName: client, subjectAltNames: [a]}}}]
`

// Every reference to a secret has the same ConfigSource, in each byte: for any other one
// Envoy never asks, and the connections have no certificate (SDS-2, S7).
func TestReferencesAreEqual(t *testing.T) {
	pc := meshtest.PushContext(t, meshtest.YAML(t, encrypted)...)
	files, err := structpb.NewStruct(map[string]any{"TLS_SERVER_CERT_CHAIN": "/c", "TLS_SERVER_KEY": "/k"})
	if err != nil {
		t.Fatal(err)
	}
	class := index.Classify(pc, &proxy.Proxy{Type: proxy.Router, Namespace: "edge", Metadata: files})
	var first []byte
	names := map[ident.ResourceType]int{}
	visit := func(rt ident.ResourceType, m proto.Message) {
		walk(m.ProtoReflect(), func(m proto.Message) {
			s, ok := m.(*tlsv3.SdsSecretConfig)
			if !ok {
				return
			}
			names[rt]++
			b, err := proto.MarshalOptions{Deterministic: true}.Marshal(s.GetSdsConfig())
			if err != nil {
				t.Fatal(err)
			}
			if first == nil {
				first = b
			}
			if string(b) != string(first) || s.GetSdsConfig().GetAds() == nil || s.GetSdsConfig().GetInitialFetchTimeout().GetSeconds() != 5 {
				t.Errorf("%s: the reference to %s is %v", rt, s.GetName(), s.GetSdsConfig())
			}
		})
	}
	for rt, message := range map[ident.ResourceType]proto.Message{ident.LDS: &listenerv3.Listener{}, ident.CDS: &clusterv3.Cluster{}} {
		result := xds.Generate(pc, class.Only(rt), rt)
		for _, r := range result.Set.Resources {
			m := message.ProtoReflect().New().Interface()
			if err := proto.Unmarshal(r.Value(), m); err != nil {
				t.Fatal(err)
			}
			visit(rt, m)
		}
	}
	if names[ident.LDS] != 11 || names[ident.CDS] != 3 {
		t.Errorf("found %d references in Listeners and %d in Clusters, want 11 and 3", names[ident.LDS], names[ident.CDS])
	}
}

// walk calls visit for m and every message in it, also inside an Any.
func walk(m protoreflect.Message, visit func(proto.Message)) {
	if a, ok := m.Interface().(*anypb.Any); ok {
		if inner, err := a.UnmarshalNew(); err == nil {
			walk(inner.ProtoReflect(), visit)
		}
		return
	}
	visit(m.Interface())
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap() && fd.MapValue().Message() != nil:
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				walk(v.Message(), visit)
				return true
			})
		case fd.IsMap() || fd.Message() == nil:
		case fd.IsList():
			for i := range v.List().Len() {
				walk(v.List().Get(i).Message(), visit)
			}
		default:
			walk(v.Message(), visit)
		}
		return true
	})
}
