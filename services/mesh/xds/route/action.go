package route

import (
	"cmp"
	"fmt"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/xds/piece"
)

// target is the place that a destination names.
type target struct {
	host, subset string
	port         uint32
}

func (to target) cluster() string { return piece.ClusterName(to.host, to.subset, to.port) }

// target resolves a destination. One that does not exist keeps its cluster
// name, so Envoy answers 503 (VSA-4).
func (t *translation) target(at string, d *networking.Destination) target {
	const advice, effect = "correct the destination, or add what it names", "requests that go there are answered with 503"
	service := t.Service(d.GetHost())
	if service == nil {
		t.warn(at+".host", fmt.Sprintf("there is no service %q that the caller may see", d.GetHost()), advice, effect)
	}
	to := target{d.GetHost(), d.GetSubset(), Port(service, d, t.Port)}
	if service != nil {
		to.host = service.Hostname // an alias stands for another host (SVC-4)
		if _, ok := service.Port(to.port); !ok {
			t.warn(at+".port", fmt.Sprintf("service %q has no port %d", to.host, to.port), advice, effect)
		}
		if to.subset != "" && !hasSubset(t.Rule(d.GetHost()), to.subset) {
			t.warn(at+".subset", fmt.Sprintf("no DestinationRule of %q has a subset %q", d.GetHost(), to.subset), advice, effect)
		}
	}
	return to
}

// Port returns the port that a destination means (VSA-3): the one that it
// names, else the only port of the service (nil: unknown), else the listener's.
func Port(service *index.Service, d *networking.Destination, listener uint32) uint32 {
	switch {
	case d.GetPort().GetNumber() != 0:
		return d.GetPort().GetNumber()
	case service != nil && len(service.Ports) == 1:
		return service.Ports[0].Number
	}
	return listener
}

func hasSubset(rule *networking.DestinationRule, name string) bool {
	return slices.ContainsFunc(rule.GetSubsets(), func(s *networking.Subset) bool { return s.GetName() == name })
}

func (t *translation) forward(at string, out *routev3.Route, in *networking.HTTPRoute, authority string) {
	action := &routev3.RouteAction{}
	out.Action = &routev3.Route_Route{Route: action}
	timeout(action, in.GetTimeout(), t.GRPC)
	rewrite(action, in.GetRewrite())
	if authority := cmp.Or(in.GetRewrite().GetAuthority(), authority); authority != "" {
		action.HostRewriteSpecifier = &routev3.RouteAction_HostRewriteLiteral{HostRewriteLiteral: authority}
	}
	t.mirrors(at, action, in)

	shares := Weighted(in.GetRoute())
	switch len(shares) {
	case 0:
		t.warn(at+".route", "all weights are 0", "give one destination a weight", "requests that match are answered with 503")
		unavailable(out)
		return
	case 1:
		t.single(at+".route", out, action, shares[0], in.GetRoute())
	default:
		t.split(at+".route", action, shares, in.GetRoute())
	}
	action.RetryPolicy = retryPolicy(cmp.Or(in.GetRetries(), t.Mesh().GetDefaultHttpRetryPolicy()), len(action.HashPolicy) > 0)
}

// Weighted leaves out destinations of weight 0 (VSA-2); a single destination
// gets everything.
func Weighted[D interface{ GetWeight() int32 }](all []D) []D {
	if len(all) == 1 {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(d D) bool { return d.GetWeight() <= 0 })
}

// single sends everything to one destination (VSA-1).
func (t *translation) single(at string, out *routev3.Route, action *routev3.RouteAction, d *networking.HTTPRouteDestination, all []*networking.HTTPRouteDestination) {
	at = field(at, slices.Index(all, d)) + ".destination"
	to := t.target(at, d.GetDestination())
	action.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: to.cluster()}
	h := headerChanges(d.GetHeaders())
	h.applyTo(out)
	if h.authority != "" && action.HostRewriteSpecifier == nil {
		action.HostRewriteSpecifier = &routev3.RouteAction_HostRewriteLiteral{HostRewriteLiteral: h.authority}
	}
	action.HashPolicy = hashPolicy(hashOf(t.Mesh(), t.Rule(d.GetDestination().GetHost()), to.subset, to.port))
}

// split shares requests by weight (VSA-2).
func (t *translation) split(at string, action *routev3.RouteAction, shares, all []*networking.HTTPRouteDestination) {
	split := &routev3.WeightedCluster{}
	for _, d := range shares {
		to := t.target(field(at, slices.Index(all, d))+".destination", d.GetDestination())
		w := &routev3.WeightedCluster_ClusterWeight{Name: to.cluster(), Weight: wrapperspb.UInt32(uint32(d.GetWeight()))}
		h := headerChanges(d.GetHeaders())
		w.RequestHeadersToAdd, w.RequestHeadersToRemove = h.request.add, h.request.remove
		w.ResponseHeadersToAdd, w.ResponseHeadersToRemove = h.response.add, h.response.remove
		if h.authority != "" {
			w.HostRewriteSpecifier = &routev3.WeightedCluster_ClusterWeight_HostRewriteLiteral{HostRewriteLiteral: h.authority}
		}
		split.Clusters = append(split.Clusters, w)
		action.HashPolicy = append(action.HashPolicy, hashPolicy(hashOf(t.Mesh(), t.Rule(d.GetDestination().GetHost()), to.subset, to.port))...)
	}
	action.ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: split}
}

// timeout sets how long a request may take; without a timeout, for ever
// (VSA-9). Envoy lets the deadline of a gRPC caller count up to that.
func timeout(action *routev3.RouteAction, d *durationpb.Duration, grpc bool) {
	if d == nil {
		d = durationpb.New(0)
	}
	action.Timeout = d
	if grpc {
		action.MaxStreamDuration = &routev3.RouteAction_MaxStreamDuration{MaxStreamDuration: d}
	} else {
		action.MaxStreamDuration = &routev3.RouteAction_MaxStreamDuration{GrpcTimeoutHeaderMax: d}
	}
}

// rewrite rewrites path and host (VSA-8).
func rewrite(action *routev3.RouteAction, in *networking.HTTPRewrite) {
	if r := in.GetUriRegexRewrite(); r != nil {
		action.RegexRewrite = &matcherv3.RegexMatchAndSubstitute{Pattern: regex(r.GetMatch()), Substitution: r.GetRewrite()}
	} else {
		action.PrefixRewrite = in.GetUri()
	}
}

// mirrors copies requests to other destinations (VSA-13).
func (t *translation) mirrors(at string, action *routev3.RouteAction, in *networking.HTTPRoute) {
	mirror := func(at string, d *networking.Destination, share *corev3.RuntimeFractionalPercent) {
		if d == nil || share == nil {
			return
		}
		action.RequestMirrorPolicies = append(action.RequestMirrorPolicies, &routev3.RouteAction_RequestMirrorPolicy{
			Cluster: t.target(at, d).cluster(), RuntimeFraction: share,
			TraceSampled: wrapperspb.Bool(false), DisableShadowHostSuffixAppend: true,
		})
	}
	share := in.GetMirrorPercentage()
	if share == nil && in.GetMirrorPercent() != nil { //nolint:staticcheck // users still write it
		share = &networking.Percent{Value: float64(in.GetMirrorPercent().GetValue())} //nolint:staticcheck // users still write it
	}
	mirror(at+".mirror", in.GetMirror(), mirrorShare(share))
	for i, m := range in.GetMirrors() {
		mirror(field(at+".mirrors", i)+".destination", m.GetDestination(), mirrorShare(m.GetPercentage()))
	}
}

// mirrorShare returns everything without a percentage, and nil for 0 %.
func mirrorShare(p *networking.Percent) *corev3.RuntimeFractionalPercent {
	if p == nil {
		p = &networking.Percent{Value: 100}
	}
	share := fraction(p)
	if share.GetNumerator() == 0 {
		return nil
	}
	return &corev3.RuntimeFractionalPercent{DefaultValue: share}
}

// redirect answers with a redirect (VSA-6).
func (t *translation) redirect(at string, out *routev3.Route, in *networking.HTTPRedirect) {
	r := &routev3.RedirectAction{HostRedirect: in.GetAuthority()}
	switch {
	case in.GetPrefixRewrite() != "":
		r.PathRewriteSpecifier = &routev3.RedirectAction_PrefixRewrite{PrefixRewrite: in.GetPrefixRewrite()}
	case in.GetUri() != "":
		r.PathRewriteSpecifier = &routev3.RedirectAction_PathRedirect{PathRedirect: in.GetUri()}
	}
	scheme := "http"
	if in.GetScheme() != "" {
		scheme = in.GetScheme()
		r.SchemeRewriteSpecifier = &routev3.RedirectAction_SchemeRedirect{SchemeRedirect: scheme}
	}
	switch p := in.GetRedirectPort().(type) {
	case *networking.HTTPRedirect_Port:
		r.PortRedirect = p.Port
	case *networking.HTTPRedirect_DerivePort:
		if p.DerivePort == networking.HTTPRedirect_FROM_REQUEST_PORT {
			r.PortRedirect = t.Port
		}
	}
	if r.PortRedirect == 80 && scheme == "http" || r.PortRedirect == 443 && scheme == "https" {
		r.PortRedirect = 0
	}
	codes := map[uint32]routev3.RedirectAction_RedirectResponseCode{
		0: routev3.RedirectAction_MOVED_PERMANENTLY, 301: routev3.RedirectAction_MOVED_PERMANENTLY,
		302: routev3.RedirectAction_FOUND, 303: routev3.RedirectAction_SEE_OTHER,
		307: routev3.RedirectAction_TEMPORARY_REDIRECT, 308: routev3.RedirectAction_PERMANENT_REDIRECT,
	}
	code, ok := codes[in.GetRedirectCode()]
	if !ok {
		t.warn(at+".redirectCode", fmt.Sprintf("%d is no redirect", in.GetRedirectCode()), "use 301, 302, 303, 307 or 308", "requests that match are answered with 503")
		unavailable(out)
		return
	}
	r.ResponseCode = code
	out.Action = &routev3.Route_Redirect{Redirect: r}
}

// directResponse answers without a destination (VSA-7).
func directResponse(out *routev3.Route, in *networking.HTTPDirectResponse) {
	d := &routev3.DirectResponseAction{Status: in.GetStatus()}
	switch b := in.GetBody().GetSpecifier().(type) {
	case *networking.HTTPBody_String_:
		d.Body = &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: b.String_}}
	case *networking.HTTPBody_Bytes:
		d.Body = &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b.Bytes}}
	}
	out.Action = &routev3.Route_DirectResponse{DirectResponse: d}
}

// unavailable answers 503 where the route cannot do what the object says.
func unavailable(out *routev3.Route) {
	out.Action = &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 503}}
}
