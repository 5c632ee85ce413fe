package xds_test

import (
	"net/netip"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/simulate"
	"meshlog.dev/services/mesh/xds"
)

// Requests to a host whose virtual host Envoy would refuse are answered with 503.
// With ALLOW_ANY they would otherwise go to any address, past the policies of the
// host (PRO-7, section 5, item 1).
func TestRefusedHostKeepsItsDomains(t *testing.T) {
	pc := PushContext(t, Service("a", "x", "80 http"), Service("a", "y", "80 http"), Object("VirtualService", "a", "v", &networking.VirtualService{
		Hosts: []string{"x.a.svc.cluster.local"},
		Http: []*networking.HTTPRoute{{
			Route:   []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: "x"}}},
			Retries: &networking.HTTPRetry{Attempts: 1, Backoff: durationpb.New(0)},
		}},
	}))
	class := index.Classify(pc, &proxy.Proxy{Type: proxy.Sidecar, Namespace: "a"})
	var sets [ident.ResourceTypes]*xds.Set
	for ty := range sets {
		sets[ty] = xds.Generate(pc, class, ident.ResourceType(ty)).Set
	}
	p, err := simulate.NewProxy(sets)
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]struct {
		status uint32
		to     string
	}{
		"x.a.svc.cluster.local": {503, ""},
		"x":                     {503, ""},
		"y":                     {0, "outbound|80||y.a.svc.cluster.local"},
		"other.example.com":     {0, "PassthroughCluster"},
	} {
		got := p.Call(simulate.Call{Address: netip.MustParseAddr("240.0.0.9"), Port: 80, Host: host, Method: "GET", Path: "/"})
		to := ""
		if len(got.To) > 0 {
			to = got.To[0].Cluster
		}
		if got.Status != want.status || to != want.to {
			t.Errorf("%s: %+v, want %+v", host, got, want)
		}
	}
}
