package xds_test

import (
	"bytes"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	"meshlog.dev/services/mesh/index"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/mesh/xds/piece"
)

func generate(pc *index.PushContext, cluster string, t ident.ResourceType) xds.Result {
	return xds.Generate(pc, index.Classify(pc, &proxy.Proxy{Cluster: cluster}), t)
}

func TestGenerate(t *testing.T) {
	pc := PushContext(t,
		Put("b", Cluster("b", 1)), Put("a", Cluster("a", 1)),
		PutFor("edge", Group("edge"), Cluster("a", 2)), // loses: "a" comes before "edge"
		PutFor("c", Group("edge"), Cluster("c", 1)),
		PutFor("d", Group("other"), Cluster("d", 1)),
		Put("endpoints", Endpoints("a", 1)),
	)
	got := generate(pc, "edge", ident.CDS)
	var names []string
	for _, r := range got.Set.Resources {
		names = append(names, r.Name)
	}
	if diff := cmp.Diff([]string{"a", "b", "c"}, names); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	want, err := proto.Marshal(Cluster("a", 1))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Set.Resources[0].Value(), want) {
		t.Error("cluster a is not from the object that wins")
	}
	if diff := cmp.Diff(got.Set.Sum, generate(pc, "edge", ident.CDS).Set.Sum); diff != "" {
		t.Errorf("the second Generate has another sum:\n%s", diff)
	}
}

// A raw resource keeps its bytes from the log, also fields that this build does
// not know.
func TestBytesAreUntouched(t *testing.T) {
	value, err := proto.Marshal(Cluster("a", 1))
	if err != nil {
		t.Fatal(err)
	}
	value = protowire.AppendTag(value, 9999, protowire.VarintType)
	value = protowire.AppendVarint(value, 7)
	pc := PushContext(t, Object("Resource", "istio-system", "a", &configv1.Resource{
		Resource: &anypb.Any{TypeUrl: ident.CDS.URL(), Value: value},
	}))
	got := generate(pc, "", ident.CDS)
	if len(got.Set.Resources) != 1 || !bytes.Equal(got.Set.Resources[0].Value(), value) {
		t.Errorf("got %v", got.Set.Resources)
	}
}

func TestInspect(t *testing.T) {
	named := Cluster("a", 1)
	named.EdsClusterConfig.ServiceName = "other"
	for name, test := range map[string]struct {
		t       ident.ResourceType
		message proto.Message
		want    piece.Facts
	}{
		"EDS":                      {ident.CDS, Cluster("a", 1), piece.Facts{Endpoints: "a"}},
		"EDS by another name":      {ident.CDS, named, piece.Facts{Endpoints: "other"}},
		"DNS":                      {ident.CDS, dnsCluster("a"), piece.Facts{SlowWarm: true}},
		"secrets":                  {ident.CDS, secretCluster(t, "a"), piece.Facts{Endpoints: "a", SlowWarm: true, Secrets: []string{"cert"}}},
		"endpoints":                {ident.EDS, Endpoints("a", 1), piece.Facts{}},
		"weighted routes":          {ident.RDS, Routes("r", To("b", 1), To("a", 0), To("b", 2)), piece.Facts{Clusters: []string{"a", "b"}}},
		"a listener with RDS":      {ident.LDS, Listener("l", 1, "r"), piece.Facts{}},
		"a listener with TCP":      {ident.LDS, TCPListener("l", 1, "a"), piece.Facts{Clusters: []string{"a"}}},
		"a listener with a secret": {ident.LDS, secretListener(t, "l", "a"), piece.Facts{Clusters: []string{"a"}, Secrets: []string{"cert"}}},
		"mirrors, single names":    {ident.RDS, mirrorRoutes("r", "a", "b"), piece.Facts{Clusters: []string{"a", "b"}}},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := proto.Marshal(test.message)
			if err != nil {
				t.Fatal(err)
			}
			got, err := piece.Inspect(test.t, b)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	if _, err := piece.Inspect(ident.CDS, []byte{0xff}); err == nil {
		t.Error("Inspect accepts invalid bytes")
	}
}

func BenchmarkClassifyGenerate(b *testing.B) {
	var changes []Change
	for i := range 1000 {
		name := string(rune('a'+i%26)) + string(rune('a'+i/26%26)) + string(rune('a'+i/676))
		changes = append(changes, Put(name, Cluster(name, 1)))
	}
	pc := PushContext(b, changes...)
	p := &proxy.Proxy{Cluster: "edge"}
	b.ReportAllocs()
	for b.Loop() {
		xds.Generate(pc, index.Classify(pc, p), ident.CDS)
	}
}

// dnsCluster returns a cluster that must resolve a name to be warm.
func dnsCluster(name string) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS},
		LoadAssignment:       Endpoints(name, 80),
	}
}

// secretCluster returns a cluster that waits for a secret.
func secretCluster(t *testing.T, name string) *clusterv3.Cluster {
	t.Helper()
	c := Cluster(name, 1)
	tls, err := anypb.New(&tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{{Name: "cert", SdsConfig: c.GetEdsClusterConfig().GetEdsConfig()}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	c.TransportSocket = &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: tls}}
	return c
}

// secretListener returns a listener that waits for a secret.
func secretListener(t *testing.T, name, cluster string) *listenerv3.Listener {
	t.Helper()
	l := TCPListener(name, 1, cluster)
	l.FilterChains[0].TransportSocket = secretCluster(t, name).GetTransportSocket()
	return l
}

// mirrorRoutes returns a RouteConfiguration that sends everything to a cluster, and
// a copy to another.
func mirrorRoutes(name, cluster, mirror string) *routev3.RouteConfiguration {
	rc := Routes(name)
	rc.VirtualHosts[0].Routes[0].Action = &routev3.Route_Route{Route: &routev3.RouteAction{
		ClusterSpecifier:      &routev3.RouteAction_Cluster{Cluster: cluster},
		RequestMirrorPolicies: []*routev3.RouteAction_RequestMirrorPolicy{{Cluster: mirror}},
	}}
	return rc
}
