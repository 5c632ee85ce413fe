package listener_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds/listener"
	"meshlog.dev/services/suite/envoytest"
)

// inboundListeners returns the Listeners for the workload of a sidecar with label app=web
// and the address 10.1.0.7, whose node has this metadata.
func inboundListeners(t *testing.T, documents string, metadata map[string]string) []*listenerv3.Listener {
	t.Helper()
	fields := map[string]*structpb.Value{}
	for k, v := range metadata {
		fields[k] = structpb.NewStringValue(v)
	}
	pc := meshtest.PushContext(t, meshtest.YAML(t, documents)...)
	class := index.Classify(pc, &proxy.Proxy{
		ID: "sidecar~10.1.0.7~web-1.shop~shop.svc.cluster.local", Type: proxy.Sidecar, Namespace: "shop",
		Labels: map[string]string{"app": "web"}, Metadata: &structpb.Struct{Fields: fields},
	})
	var all []*listenerv3.Listener
	for _, part := range listener.Listeners(pc.Read(), class.LDS) {
		pieces, _ := part.Make(pc.Read())
		for _, p := range pieces {
			switch {
			case !strings.Contains(strings.ToLower(p.Name), "inbound"):
			case len(all) > 0 && all[len(all)-1].GetName() == p.Name:
				proto.Merge(all[len(all)-1], p.Message)
			default:
				all = append(all, p.Message.(*listenerv3.Listener))
			}
		}
	}
	return all
}

// chainsOn writes the filter chains of a listener that are for a destination port; 0: for
// any.
func chainsOn(t *testing.T, l *listenerv3.Listener, port uint32) []string {
	t.Helper()
	var all []string
	for _, c := range l.GetFilterChains() {
		m := c.GetFilterChainMatch()
		if m.GetDestinationPort().GetValue() != port {
			continue
		}
		way := "plain"
		if c.GetTransportSocket() != nil {
			way = "mTLS"
		}
		filter, err := c.GetFilters()[0].GetTypedConfig().UnmarshalNew()
		if err != nil {
			t.Fatal(err)
		}
		switch f := filter.(type) {
		case *hcmv3.HttpConnectionManager:
			way += " HTTP to " + f.GetRouteConfig().GetVirtualHosts()[0].GetRoutes()[0].GetRoute().GetCluster()
		case *tcpv3.TcpProxy:
			way += " TCP to " + f.GetCluster()
		}
		all = append(all, strings.Join(append([]string{m.GetTransportProtocol()}, m.GetApplicationProtocols()...), " ")+": "+way)
	}
	return all
}

const (
	webService = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.9.0.1, selector: {app: web}, ports: [{name: %s, port: 80, targetPort: 8080}]}
`
	peers = `---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: all, namespace: shop}
spec: {mtls: {mode: %s}}
`
	peerNames  = "istio-peer-exchange istio istio-http/1.0 istio-http/1.1 istio-h2"
	httpNames  = "istio-http/1.0 istio-http/1.1 istio-h2"
	tcpNames   = "istio-peer-exchange istio"
	plainNames = "http/1.0 http/1.1 h2c"
)

// Each mode and protocol has the filter chains of MTLS-1 to MTLS-4, for the port of a
// service and for all others, and a real Envoy takes them.
func TestInboundChains(t *testing.T) {
	agent := map[string]string{"SDS_CLUSTER": "sds-grpc"}
	for name, test := range map[string]struct {
		mode, protocol string
		metadata       map[string]string
		want           []string // with IN for the cluster of the port
	}{
		"MTLS-1 PERMISSIVE auto": {"PERMISSIVE", "x", agent, []string{
			"tls " + httpNames + ": mTLS HTTP to IN", "raw_buffer " + plainNames + ": plain HTTP to IN",
			"tls " + tcpNames + ": mTLS TCP to IN", "raw_buffer: plain TCP to IN", "tls: plain TCP to IN",
		}},
		"MTLS-2 PERMISSIVE HTTP": {"PERMISSIVE", "http", agent, []string{"tls " + peerNames + ": mTLS HTTP to IN", "raw_buffer: plain HTTP to IN"}},
		"MTLS-2 PERMISSIVE TCP":  {"PERMISSIVE", "tcp", agent, []string{"tls " + peerNames + ": mTLS TCP to IN", "tls: plain TCP to IN", "raw_buffer: plain TCP to IN"}},
		"MTLS-3 STRICT auto":     {"STRICT", "x", agent, []string{"tls " + httpNames + ": mTLS HTTP to IN", "tls: mTLS TCP to IN"}},
		"MTLS-3 STRICT HTTP":     {"STRICT", "grpc", agent, []string{"tls: mTLS HTTP to IN"}},
		"MTLS-3 STRICT TCP":      {"STRICT", "tcp", agent, []string{"tls: mTLS TCP to IN"}},
		"MTLS-4 DISABLE auto":    {"DISABLE", "x", agent, []string{"raw_buffer " + plainNames + ": plain HTTP to IN", "raw_buffer: plain TCP to IN"}},
		"MTLS-4 DISABLE HTTP":    {"DISABLE", "http", agent, []string{"raw_buffer: plain HTTP to IN"}},
		"MTLS-4 DISABLE TCP":     {"DISABLE", "tcp", agent, []string{"raw_buffer: plain TCP to IN"}},
		"MTLS-16 STRICT":         {"STRICT", "http", nil, []string{": plain TCP to BlackHoleCluster"}},
		"MTLS-16 PERMISSIVE":     {"PERMISSIVE", "http", nil, []string{"raw_buffer: plain HTTP to IN"}},
		"files":                  {"STRICT", "http", map[string]string{"TLS_SERVER_CERT_CHAIN": "/c", "TLS_SERVER_KEY": "/k"}, []string{"tls: mTLS HTTP to IN"}},
	} {
		t.Run(name, func(t *testing.T) {
			all := inboundListeners(t, fmt.Sprintf(webService, test.protocol)+fmt.Sprintf(peers, test.mode), test.metadata)
			if len(all) != 1 {
				t.Fatalf("%d listeners, want virtualInbound", len(all))
			}
			want := make([]string, len(test.want))
			for i, w := range test.want {
				want[i] = strings.ReplaceAll(w, "IN", "inbound|8080||")
			}
			if diff := cmp.Diff(want, chainsOn(t, all[0], 8080)); diff != "" {
				t.Errorf("port 8080 (-want +got):\n%s", diff)
			}
			if got := chainsOn(t, all[0], 0); test.mode == "PERMISSIVE" && test.metadata != nil && (len(got) != 5 || !strings.HasSuffix(got[4], "TCP to InboundPassthroughCluster")) {
				t.Errorf("other ports: %q", got)
			}
			for _, port := range []uint32{15000, 15001, 15006, 15020, 15021, 15090} {
				if got := chainsOn(t, all[0], port); !slices.Equal(got, []string{": plain TCP to BlackHoleCluster"}) {
					t.Errorf("port %d: %q", port, got)
				}
			}
			secure(t, all[0], test.metadata)
			envoytest.Validate(t, envoytest.Config{Listeners: all})
		})
	}
}

// secure checks what holds for each chain that decrypts: it demands an identity of the
// mesh and resumes no session (MTLS-6, S44), and asks where the proxy has certificates.
func secure(t *testing.T, l *listenerv3.Listener, metadata map[string]string) {
	t.Helper()
	for _, c := range l.GetFilterChains() {
		if c.GetTransportSocket() == nil {
			continue
		}
		m := new(tlsv3.DownstreamTlsContext)
		if err := c.GetTransportSocket().GetTypedConfig().UnmarshalTo(m); err != nil {
			t.Fatal(err)
		}
		v := m.GetCommonTlsContext().GetCombinedValidationContext()
		names := v.GetDefaultValidationContext().GetMatchTypedSubjectAltNames()
		if !m.GetRequireClientCertificate().GetValue() || !m.GetDisableStatelessSessionResumption() || !m.GetDisableStatefulSessionResumption() ||
			len(names) != 1 || names[0].GetMatcher().GetPrefix() != "spiffe://cluster.local/" {
			t.Errorf("chain %s does not verify clients: %v", c.GetName(), m)
		}
		source := m.GetCommonTlsContext().GetTlsCertificateSdsSecretConfigs()[0].GetSdsConfig()
		if agent := source.GetApiConfigSource() != nil; agent != (metadata["SDS_CLUSTER"] != "") {
			t.Errorf("chain %s asks %v for its certificate", c.GetName(), source)
		}
	}
}

// Without redirection each port has a listener that binds the workload's address, and the
// workload is called on loopback (MTLS-13).
func TestInboundBinds(t *testing.T) {
	metadata := map[string]string{"SDS_CLUSTER": "sds-grpc", "INTERCEPTION_MODE": "NONE"}
	all := inboundListeners(t, fmt.Sprintf(webService, "http")+fmt.Sprintf(peers, "STRICT"), metadata)
	if len(all) != 1 || all[0].GetAddress().GetSocketAddress().GetAddress() != "10.1.0.7" || all[0].GetAddress().GetSocketAddress().GetPortValue() != 8080 {
		t.Fatalf("listeners: %v", all)
	}
	if got := chainsOn(t, all[0], 0); !slices.Equal(got, []string{"tls: mTLS HTTP to inbound|8080||"}) {
		t.Errorf("chains: %q", got)
	}
	secure(t, all[0], metadata)
}

// A service that names the port of Envoy's administration opens it to no caller: without
// redirection it would be called on loopback (MTLS-14).
func TestInboundBindsNoAdministration(t *testing.T) {
	for _, port := range []string{"15000", "15020", "15021", "15090"} {
		documents := strings.ReplaceAll(fmt.Sprintf(webService, "http"), "8080", port)
		if all := inboundListeners(t, documents, map[string]string{"SDS_CLUSTER": "sds-grpc", "INTERCEPTION_MODE": "NONE"}); len(all) != 0 {
			t.Errorf("port %s has a listener: %v", port, all)
		}
	}
}

// Two replicas of a deployment are one class, and a PeerAuthentication by labels adds
// classes by mode only.
func TestInboundClasses(t *testing.T) {
	pc := meshtest.PushContext(t, meshtest.YAML(t, fmt.Sprintf(webService, "http")+fmt.Sprintf(peers, "STRICT"))...)
	class := func(ip, version string) index.ProxyClass {
		return index.Classify(pc, &proxy.Proxy{
			ID: "sidecar~" + ip + "~web.shop~shop.svc.cluster.local", Type: proxy.Sidecar, Namespace: "shop",
			Labels: map[string]string{"app": "web", "version": version},
		})
	}
	if a, b := class("10.1.0.7", "v1"), class("10.1.0.8", "v2"); a != b {
		t.Errorf("two classes: %+v and %+v", a, b)
	}
}
