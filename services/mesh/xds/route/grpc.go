package route

import (
	"maps"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/xds/piece"
)

// grpcParts returns the parts of a gRPC client's RouteConfigurations: one for
// each port of a service, named after its cluster, because a client asks only
// for the service that it dials.
func grpcParts(r *index.Reader, class index.RDSClass) []piece.Part {
	b := &sidecar{r: r, class: class}
	var parts []piece.Part
	for _, e := range r.Egress(class.Scope) {
		routing := newRouting(e.VirtualServices)
		for _, s := range e.Services {
			vs := routing.hosts.Of(s.Hostname)
			for _, p := range s.Ports {
				if !piece.TakesRequests(p.Protocol) {
					continue
				}
				h := b.virtualHost(s, p, vs)
				h.routes, h.alone, h.grpc = piece.ClusterName(s.Hostname, "", p.Number), true, true
				parts = append(parts, head{routes: h.routes}, h)
			}
		}
	}
	return parts
}

// forGRPC removes what gRPC clients reject or do not read: configuration of
// filters that they lack, and matches on metadata. A route that needs metadata
// never matches.
func forGRPC(routes []*routev3.Route) {
	for _, r := range routes {
		maps.DeleteFunc(r.GetTypedPerFilterConfig(), func(name string, _ *anypb.Any) bool { return name != FaultFilter })
		if slices.ContainsFunc(r.GetMatch().GetDynamicMetadata(), func(m *matcherv3.MetadataMatcher) bool { return !m.GetInvert() }) {
			never := &typev3.FractionalPercent{}
			r.Match.RuntimeFraction = &corev3.RuntimeFractionalPercent{DefaultValue: never}
		}
		r.Match.DynamicMetadata = nil
	}
}
