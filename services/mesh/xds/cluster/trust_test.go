package cluster_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"meshlog.dev/deploy/testkit/certtest"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds/cluster"
)

// CA-13: a client trusts the trust domains that the names of a service's servers are in, and
// no other. gRPC clients have the roots of the mesh only, and names that are no URI do not
// count among those of several domains: a Diagnostic says so.
func TestTrustedDomainsOfClients(t *testing.T) {
	far, own := certtest.NewCA("far"), certtest.NewCA("own")
	for _, c := range []struct {
		names  string // of servers; empty: those of accounts
		rule   string // what the DestinationRule names
		secret string
		envoy  string // what is said for sidecars
		grpc   string // and for gRPC clients
	}{
		{"", "", "ROOTCA", "", ""},
		{`"spiffe://one/ns/a/sa/b"`, "", "ROOTCA", "", ""},
		{`"spiffe://three/a"`, "", "ROOTCA", "", ""},
		{`"spiffe://two/a"`, "", "ROOTCA:one,two", "", "ServiceEntry: gRPC clients have the roots"},
		{`"spiffe://two/a", a.example.com`, "", "ROOTCA:one,two", "ServiceEntry: of servers of several trust domains", "ServiceEntry: gRPC clients have the roots"},
		{`"spiffe://one/a"`, `"spiffe://two/a"`, "ROOTCA:two", "", "DestinationRule: gRPC clients have the roots"},
		{`"spiffe://two/a"`, `"spiffe://one/a"`, "ROOTCA", "", ""},
	} {
		rule := ""
		if c.rule != "" {
			rule = ", subjectAltNames: [" + c.rule + "]"
		}
		pc := meshtest.PushContext(t, append(meshtest.YAML(t, fmt.Sprintf(`
apiVersion: mesh.istio.io/v1alpha1
kind: MeshConfig
metadata: {name: default}
spec: {trustDomain: one, caCertificates: [{trustDomains: [two], pem: %q}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: r, namespace: a}
spec: {host: a.example.com, trafficPolicy: {tls: {mode: ISTIO_MUTUAL%s}}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: a, namespace: a}
spec:
  hosts: [a.example.com]
  location: MESH_INTERNAL
  resolution: STATIC
  subjectAltNames: [%s]
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 10.0.0.1, serviceAccount: a}]
`, far.PEM(), rule, c.names)), meshtest.Object("TrustBundle", "", "one", &registryv1.TrustBundle{TrustDomain: "one", Roots: []*registryv1.Root{
			{Certificate: string(own.PEM()), State: registryv1.RootState_ROOT_STATE_ACTIVE},
		}}))...)
		secrets, said := clientsOf(t, pc, index.CDSClass{Client: index.ClientSidecar, Certificates: proxy.Certificates{Agent: true}})
		if !slices.Equal(secrets, []string{c.secret}) || !strings.HasPrefix(said, c.envoy) || (said == "") != (c.envoy == "") {
			t.Errorf("%s, rule %s: sidecars trust %q and are told %q; want %s, %q", c.names, c.rule, secrets, said, c.secret, c.envoy)
		}
		_, said = clientsOf(t, pc, index.CDSClass{Client: index.ClientGRPC, Certificates: proxy.Certificates{Provider: "default"}})
		if !strings.HasPrefix(said, c.grpc) || (said == "") != (c.grpc == "") {
			t.Errorf("%s, rule %s: gRPC clients are told %q, want %q", c.names, c.rule, said, c.grpc)
		}
	}
}

// clientsOf returns the secrets by which clients of a class verify servers, and what they are told.
func clientsOf(t *testing.T, pc *index.PushContext, class index.CDSClass) (secrets []string, said string) {
	t.Helper()
	for _, part := range cluster.Clusters(pc.Read(), class) {
		pieces, problems := part.Make(pc.Read())
		for _, d := range problems {
			said += d.Key.Kind + ": " + d.Reason
		}
		for _, p := range pieces {
			var tls tlsv3.UpstreamTlsContext
			if socket := p.Message.(*clusterv3.Cluster).GetTransportSocket(); socket != nil && socket.GetTypedConfig().UnmarshalTo(&tls) == nil {
				if name := tls.GetCommonTlsContext().GetCombinedValidationContext().GetValidationContextSdsSecretConfig().GetName(); name != "" {
					secrets = append(secrets, name)
				}
			}
		}
	}
	return secrets, said
}
