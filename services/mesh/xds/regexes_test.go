package xds_test

import (
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds"
)

// A stock Envoy gets no expression that it refuses: requests that the route might
// match are answered with 503, and fall through to no other route. Envoys whose
// bootstrap raised the limit, and gRPC clients, get the expression (PRO-7).
func TestLargeRegexes(t *testing.T) {
	large := "/(" + strings.Repeat("abcdefgh|ijklmnop|", 12) + "z)/x"
	routed := func(expr string) []Change {
		return []Change{Service("a", "x", "80 http"), Object("VirtualService", "a", "v", &networking.VirtualService{
			Hosts: []string{"x.a.svc.cluster.local"},
			Http: []*networking.HTTPRoute{
				{Name: "first", Match: []*networking.HTTPMatchRequest{{Uri: &networking.StringMatch{MatchType: &networking.StringMatch_Exact{Exact: "/1"}}}}, DirectResponse: &networking.HTTPDirectResponse{Status: 201}},
				{Name: "large", Match: []*networking.HTTPMatchRequest{{Uri: &networking.StringMatch{MatchType: &networking.StringMatch_Regex{Regex: expr}}}}, DirectResponse: &networking.HTTPDirectResponse{Status: 202}},
				{Name: "last", DirectResponse: &networking.HTTPDirectResponse{Status: 203}},
			},
		})}
	}
	metadata := func(fields map[string]any) *structpb.Struct {
		s, err := structpb.NewStruct(fields)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	pc := PushContext(t, routed(large)...)
	for _, c := range []struct {
		name   string
		proxy  proxy.Proxy
		regex  string
		status uint32
	}{
		{"stock", proxy.Proxy{Type: proxy.Sidecar}, "(?s:/(.*)/x)", 503},
		{"too low", proxy.Proxy{Type: proxy.Sidecar, Metadata: metadata(map[string]any{"RE2_MAX_PROGRAM_SIZE": 1000})}, "(?s:/(.*)/x)", 503},
		{"raised", proxy.Proxy{Type: proxy.Sidecar, Metadata: metadata(map[string]any{"RE2_MAX_PROGRAM_SIZE": 32768})}, large, 202},
		{"raised, as text", proxy.Proxy{Type: proxy.Sidecar, Metadata: metadata(map[string]any{"RE2_MAX_PROGRAM_SIZE": "32768"})}, large, 202},
		{"Istio's", proxy.Proxy{Type: proxy.Sidecar, Metadata: metadata(map[string]any{"ISTIO_VERSION": "1.31.1"})}, large, 202},
	} {
		made := xds.Generate(pc, index.Classify(pc, &c.proxy), ident.RDS).Set.Find("80")
		if made == nil {
			t.Fatalf("%s: there are no routes", c.name)
		}
		m := new(routev3.RouteConfiguration)
		if err := proto.Unmarshal(made.Value(), m); err != nil {
			t.Fatal(err)
		}
		routes := m.GetVirtualHosts()[0].GetRoutes()
		if len(routes) != 3 || routes[0].GetDirectResponse().GetStatus() != 201 || routes[2].GetDirectResponse().GetStatus() != 203 {
			t.Fatalf("%s: the other routes are %v", c.name, routes)
		}
		if got := routes[1]; got.GetMatch().GetSafeRegex().GetRegex() != c.regex || got.GetDirectResponse().GetStatus() != c.status {
			t.Errorf("%s: the route is %v, want %q and %d", c.name, got, c.regex, c.status)
		}
	}
	// Without such expressions the limit makes no classes.
	anyValue := routed("/a.*")
	anyValue[1] = Object("VirtualService", "a", "v", &networking.VirtualService{
		Hosts: []string{"x.a.svc.cluster.local"},
		Http: []*networking.HTTPRoute{{
			Match: []*networking.HTTPMatchRequest{
				{Uri: &networking.StringMatch{MatchType: &networking.StringMatch_Regex{Regex: "/a.*"}}},
				{Headers: map[string]*networking.StringMatch{"x-user": {MatchType: &networking.StringMatch_Regex{Regex: "*"}}}}, // VSM-5
			},
			DirectResponse: &networking.HTTPDirectResponse{Status: 202},
		}},
	})
	small := PushContext(t, anyValue...)
	if index.Classify(small, &proxy.Proxy{}) != index.Classify(small, &proxy.Proxy{Metadata: metadata(map[string]any{"ISTIO_VERSION": "1.31.1"})}) {
		t.Error("Envoys with another limit are another class, without an expression that needs it")
	}
}
