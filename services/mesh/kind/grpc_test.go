package kind_test

import (
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"meshlog.dev/services/mesh/kind/validate"
)

// However many routes gRPC clients leave out, they hide no problem of another kind.
func TestCheckGRPCTellsWhatMatters(t *testing.T) {
	host := &routev3.VirtualHost{}
	redirect := &routev3.Route{
		Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{}},
		Action: &routev3.Route_Redirect{Redirect: &routev3.RedirectAction{}},
	}
	for range 100 {
		host.Routes = append(host.Routes, redirect)
	}
	routes := &routev3.RouteConfiguration{VirtualHosts: []*routev3.VirtualHost{host}}
	others := func() (n int) {
		for _, p := range validate.CheckGRPC(routes) {
			if p.Code != validate.Unsupported {
				n++
			}
		}
		return n
	}
	if n := others(); n != 0 {
		t.Errorf("%d problems with redirects but that they are unsupported", n)
	}
	host.Routes = append(host.Routes, &routev3.Route{
		Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{}, DynamicMetadata: []*matcherv3.MetadataMatcher{{}}},
		Action: redirect.GetAction(),
	})
	if n := others(); n != 1 {
		t.Errorf("%d problems with a match that is wider than it says, want 1", n)
	}
}
