package trial_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/trial"
	"meshlog.dev/services/suite/envoytest"
)

// A trial finds what validation would have to know, and what makes the
// generator panic: these messages have passed no validation (section 5, item 2).
func TestTrialRefuses(t *testing.T) {
	cookie := &networking.LoadBalancerSettings_ConsistentHashLB_HTTPCookie{
		Name: "c", Attributes: []*networking.LoadBalancerSettings_ConsistentHashLB_HTTPCookie_Attribute{{Value: "x"}},
	}
	hash := &networking.TrafficPolicy{LoadBalancer: &networking.LoadBalancerSettings{LbPolicy: &networking.LoadBalancerSettings_ConsistentHash{
		ConsistentHash: &networking.LoadBalancerSettings_ConsistentHashLB{HashKey: &networking.LoadBalancerSettings_ConsistentHashLB_HttpCookie{HttpCookie: cookie}},
	}}}
	routes := []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: "a"}}}
	for name, c := range map[string]struct {
		m    proto.Message
		want string
	}{
		"cookie attribute":         {&networking.DestinationRule{Host: "a", TrafficPolicy: hash}, "attributes[0].name"},
		"cookie attribute, hidden": {&networking.DestinationRule{Host: "a", TrafficPolicy: hash, ExportTo: []string{"~"}}, "attributes[0].name"},
		"with a credential": {&networking.DestinationRule{Host: "a", TrafficPolicy: &networking.TrafficPolicy{
			Tls: &networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_SIMPLE, CredentialName: "c"},
			LoadBalancer: &networking.LoadBalancerSettings{LbPolicy: &networking.LoadBalancerSettings_ConsistentHash{ConsistentHash: &networking.LoadBalancerSettings_ConsistentHashLB{
				HashKey:       &networking.LoadBalancerSettings_ConsistentHashLB_UseSourceIp{UseSourceIp: true},
				HashAlgorithm: &networking.LoadBalancerSettings_ConsistentHashLB_RingHash_{RingHash: &networking.LoadBalancerSettings_ConsistentHashLB_RingHash{MinimumRingSize: 8388609}},
			}}},
		}}, "ring_size"},
		"retry of the mesh": {&mesh.MeshConfig{DefaultHttpRetryPolicy: &networking.HTTPRetry{Attempts: 2, Backoff: durationpb.New(0)}}, "base_interval"},
		"port of the mesh":  {&mesh.MeshConfig{ProxyListenPort: 70000}, "port_value"},
		"DNS of the mesh":   {&mesh.MeshConfig{DnsRefreshRate: durationpb.New(100 * time.Microsecond)}, "dns_refresh_rate"},
		"authorizer of the mesh": {&mesh.MeshConfig{ExtensionProviders: []*mesh.MeshConfig_ExtensionProvider{{Name: "a", Provider: &mesh.MeshConfig_ExtensionProvider_EnvoyExtAuthzHttp{
			EnvoyExtAuthzHttp: &mesh.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationHttpProvider{Service: "a.example.com", Port: 80, PathPrefix: "/", IncludeRequestBodyInCheck: &mesh.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationRequestBody{}},
		}}}}, "max_request_bytes"},
		"route":                      {&networking.VirtualService{Http: []*networking.HTTPRoute{{Route: routes}, {Route: routes, Retries: &networking.HTTPRetry{Attempts: 1, Backoff: durationpb.New(0)}}}}, "base_interval"},
		"route behind a catch-all":   {&networking.VirtualService{Http: []*networking.HTTPRoute{{Route: routes}, {Route: routes, Rewrite: &networking.HTTPRewrite{Uri: "\n"}}}}, "prefix_rewrite"},
		"delegated route":            {&networking.VirtualService{Http: []*networking.HTTPRoute{{Delegate: &networking.Delegate{Name: "x"}, Rewrite: &networking.HTTPRewrite{Uri: "\n"}}}}, "prefix_rewrite"},
		"match of a port and caller": {&networking.VirtualService{Http: []*networking.HTTPRoute{{Route: routes, Match: []*networking.HTTPMatchRequest{{}, {Port: 81, SourceLabels: map[string]string{"a": "b"}, QueryParams: map[string]*networking.StringMatch{"": {}}}}}}}, "query_parameters[0].name"},
		"panic":                      {&networking.VirtualService{Http: []*networking.HTTPRoute{{Route: routes, Headers: &networking.Headers{Request: &networking.Headers_HeaderOperations{Set: map[string]string{"a": "\xff"}}}}}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := trial.Problems(c.m)
			if c.want == "" { // whatever it is, it is no crash
				return
			}
			if len(got) == 0 || !strings.Contains(got[0].Reason, c.want) {
				t.Errorf("got %+v, want %s", got, c.want)
			}
		})
	}
}

// A real Envoy knows the cipher suites and curves that validation lets through
// (DR-20).
func TestEnvoyKnowsCiphers(t *testing.T) {
	socket, err := anypb.New(&tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{TlsParams: &tlsv3.TlsParameters{
		CipherSuites: validate.CipherSuites, EcdhCurves: validate.Curves,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	envoytest.Validate(t, envoytest.Config{Clusters: []*clusterv3.Cluster{{
		Name: "tls", ConnectTimeout: durationpb.New(time.Second), ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		TransportSocket: &corev3.TransportSocket{Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: socket}},
	}}})
}

// BenchmarkJudge measures the judge of a builder, with and without the trial, for
// objects as they are in most meshes.
func BenchmarkJudge(b *testing.B) {
	route := func(i int) string {
		return fmt.Sprintf(`{"match": [{"uri": {"prefix": "/a%d"}, "headers": {"x-a": {"regex": "a.*"}}}], "timeout": "1s", "retries": {"attempts": 2, "retryOn": "5xx"},
			"route": [{"destination": {"host": "a", "subset": "v1"}, "weight": 90}, {"destination": {"host": "a", "subset": "v2"}, "weight": 10}]}`, i)
	}
	var hundred []string
	for i := range 100 {
		hundred = append(hundred, route(i))
	}
	for _, c := range []struct{ name, kind, spec string }{
		{"VirtualService/routes=1", "VirtualService", `{"hosts": ["a.example.com"], "http": [` + route(0) + `]}`},
		{"VirtualService/routes=100", "VirtualService", `{"hosts": ["a.example.com"], "http": [` + strings.Join(hundred, ",") + `]}`},
		{"DestinationRule", "DestinationRule", `{"host": "a", "trafficPolicy": {"connectionPool": {"tcp": {"maxConnections": 1}}}, "subsets": [{"name": "v1", "labels": {"version": "v1"}}, {"name": "v2", "labels": {"version": "v2"}}]}`},
		{"ServiceEntry", "ServiceEntry", `{"hosts": ["a.example.com"], "resolution": "STATIC", "ports": [{"number": 80, "name": "http", "protocol": "HTTP"}], "endpoints": [{"address": "10.0.0.1"}, {"address": "10.0.0.2"}]}`},
		{"EndpointSlice", "EndpointSlice", `{"service": "a", "ports": [{"number": 80}], "endpoints": [{"addresses": ["10.0.0.1"]}]}`},
		{"MeshConfig", "MeshConfig", `{"connectTimeout": "1s"}`},
	} {
		kd, _ := kind.ByName(c.kind)
		m, err := kd.DecodeJSON([]byte(c.spec))
		if err != nil {
			b.Fatal(err)
		}
		payload, err := kd.Encode(m)
		if err != nil {
			b.Fatal(err)
		}
		for name, judge := range map[string]fold.Judge{"validation": fold.KindJudge{}, "trial": fold.KindJudge{Trial: trial.Problems}} {
			b.Run(c.name+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, problems, good := judge.Judge(ident.Key{Kind: c.kind, Namespace: "default", Name: "a"}, ident.Value{Type: kd.TypeURL, Bytes: payload}); !good {
						b.Fatal(problems)
					}
				}
			})
		}
	}
}
