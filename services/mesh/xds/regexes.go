package xds

import (
	"slices"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"meshlog.dev/services/mesh/protosearch"
	"meshlog.dev/services/mesh/re2"
)

// withoutLargeRegexes changes the routes with regular expressions that a stock
// Envoy refuses: one of them would cost it all routes of a port. Requests that
// such a route might have matched are answered with 503, so that none falls
// through to another route.
func withoutLargeRegexes(c *routev3.RouteConfiguration) {
	for _, h := range c.GetVirtualHosts() {
		for i, r := range h.GetRoutes() {
			if !fits(r) {
				h.Routes[i] = &routev3.Route{Name: r.GetName(), Match: widened(r.GetMatch()), Action: unavailable()}
			}
		}
	}
}

func unavailable() *routev3.Route_DirectResponse {
	return &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 503}}
}

// fits reports whether a stock Envoy takes every expression in m.
func fits(m proto.Message) bool {
	ok := true
	eachRegex(m.ProtoReflect(), func(r *matcherv3.RegexMatcher) { ok = ok && re2.Fits(r.GetRegex(), re2.Stock) })
	return ok
}

func eachRegex(m protoreflect.Message, visit func(*matcherv3.RegexMatcher)) {
	switch m := m.Interface().(type) {
	case *matcherv3.RegexMatcher:
		visit(m)
	case *anypb.Any:
		if inner, err := m.UnmarshalNew(); err == nil {
			eachRegex(inner.ProtoReflect(), visit)
		}
		return
	}
	regexes.Each(m, func(m protoreflect.Message) { eachRegex(m, visit) })
}

var regexes = protosearch.For(func(d protoreflect.MessageDescriptor) bool {
	return d.FullName() == (*matcherv3.RegexMatcher)(nil).ProtoReflect().Descriptor().FullName()
})

// widened returns a match for at least the requests that m matches, in which every
// expression fits: with wider expressions, or without the condition.
func widened(m *routev3.RouteMatch) *routev3.RouteMatch {
	m = proto.Clone(m).(*routev3.RouteMatch)
	widen := func(r *matcherv3.RegexMatcher) { r.Regex = re2.Widen(r.GetRegex(), re2.Stock) }
	if r := m.GetSafeRegex(); r != nil {
		widen(r)
	}
	m.Headers = slices.DeleteFunc(m.GetHeaders(), func(h *routev3.HeaderMatcher) bool {
		if r := h.GetStringMatch().GetSafeRegex(); r != nil && !h.GetInvertMatch() {
			widen(r)
		}
		return !fits(h)
	})
	m.QueryParameters = slices.DeleteFunc(m.GetQueryParameters(), func(q *routev3.QueryParameterMatcher) bool {
		if r := q.GetStringMatch().GetSafeRegex(); r != nil {
			widen(r)
		}
		return !fits(q)
	})
	m.DynamicMetadata = slices.DeleteFunc(m.GetDynamicMetadata(), func(d *matcherv3.MetadataMatcher) bool { return !fits(d) })
	return m
}
