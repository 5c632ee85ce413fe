package route

import (
	"maps"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"
)

func everything() *routev3.RouteMatch {
	return &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}
}

// catchesAll reports whether a match leaves no request for the next route
// (VSM-1).
func catchesAll(m *routev3.RouteMatch) bool {
	var all bool
	switch p := m.GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Prefix:
		all = p.Prefix == "/" || p.Prefix == ""
	case *routev3.RouteMatch_SafeRegex:
		all = p.SafeRegex.GetRegex() == ".*"
	}
	return all && len(m.GetHeaders()) == 0 && len(m.GetQueryParameters()) == 0 && len(m.GetDynamicMetadata()) == 0
}

// match translates the conditions on requests; nil has none.
func (t *translation) match(at string, in *networking.HTTPMatchRequest) *routev3.RouteMatch {
	out := everything()
	if in == nil {
		return out
	}
	switch m := in.GetUri().GetMatchType().(type) { // exact, prefix or regex (VSM-2)
	case *networking.StringMatch_Exact:
		out.PathSpecifier = &routev3.RouteMatch_Path{Path: m.Exact}
	case *networking.StringMatch_Prefix:
		out.PathSpecifier = &routev3.RouteMatch_Prefix{Prefix: m.Prefix}
	case *networking.StringMatch_Regex:
		out.PathSpecifier = &routev3.RouteMatch_SafeRegex{SafeRegex: regex(m.Regex)}
	}
	if in.GetIgnoreUriCase() { // of exact and prefix matches (VSM-3)
		if out.GetSafeRegex() != nil {
			t.warn(at+".ignoreUriCase", "a regex is matched as it is written", `begin it with "(?i)"`, "the match is case-sensitive")
		} else {
			out.CaseSensitive = wrapperspb.Bool(false)
		}
	}
	t.matchHeaders(at+".headers", out, in.GetHeaders(), false)
	t.matchHeaders(at+".withoutHeaders", out, in.GetWithoutHeaders(), true)
	for _, h := range [...]struct {
		name string
		want *networking.StringMatch
	}{{":method", in.GetMethod()}, {":authority", in.GetAuthority()}, {":scheme", in.GetScheme()}} { // pseudo-headers (VSM-4)
		if h.want != nil {
			out.Headers = append(out.Headers, headerMatcher(h.name, h.want))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(in.GetQueryParams())) { // query parameters match like headers (VSM-8)
		out.QueryParameters = append(out.QueryParameters, queryMatcher(name, in.GetQueryParams()[name]))
	}
	return out
}

// matchHeaders adds conditions on the values of headers (VSM-5), or on their
// absence (VSM-6).
func (t *translation) matchHeaders(at string, out *routev3.RouteMatch, want map[string]*networking.StringMatch, without bool) {
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if claims, ok := claimPath(name); ok {
			m := claimMatcher(claims, want[name])
			m.Invert = without
			out.DynamicMetadata = append(out.DynamicMetadata, m)
			if t.Gateway == Mesh {
				t.warn(at+"."+name, "sidecars and gRPC clients do not verify the tokens of requests that they send", "route by claims at a gateway, or match something else",
					"the claim counts as absent")
			}
			continue
		}
		h := headerMatcher(name, want[name])
		if without {
			h.InvertMatch = true
			h.TreatMissingHeaderAsEmpty = h.GetStringMatch() != nil
		}
		out.Headers = append(out.Headers, h)
	}
}

func headerMatcher(name string, want *networking.StringMatch) *routev3.HeaderMatcher {
	h := &routev3.HeaderMatcher{Name: name}
	if m := stringMatcher(want); m != nil {
		h.HeaderMatchSpecifier = &routev3.HeaderMatcher_StringMatch{StringMatch: m}
	} else {
		h.HeaderMatchSpecifier = &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}
	}
	return h
}

func queryMatcher(name string, want *networking.StringMatch) *routev3.QueryParameterMatcher {
	q := &routev3.QueryParameterMatcher{Name: name}
	if m := stringMatcher(want); m != nil {
		q.QueryParameterMatchSpecifier = &routev3.QueryParameterMatcher_StringMatch{StringMatch: m}
	} else {
		q.QueryParameterMatchSpecifier = &routev3.QueryParameterMatcher_PresentMatch{PresentMatch: true}
	}
	return q
}

// stringMatcher returns nil if any value matches: an empty match, or the text
// "*" as a regex, which is not a valid one (VSM-5).
func stringMatcher(in *networking.StringMatch) *matcherv3.StringMatcher {
	switch m := in.GetMatchType().(type) {
	case *networking.StringMatch_Exact:
		return exactly(m.Exact)
	case *networking.StringMatch_Prefix:
		if m.Prefix == "" {
			return nil
		}
		return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: m.Prefix}}
	case *networking.StringMatch_Regex:
		if m.Regex == "*" || m.Regex == "" {
			return nil
		}
		return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: regex(m.Regex)}}
	}
	return nil
}

func exactly(s string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: s}}
}

func regex(expr string) *matcherv3.RegexMatcher { return &matcherv3.RegexMatcher{Regex: expr} }

const claimPrefix = "@request.auth.claims"

// claimPath reads a header that means a claim of a token (VSM-7):
// @request.auth.claims.a.b or @request.auth.claims[a][b].
func claimPath(header string) ([]string, bool) {
	if len(header) <= len(claimPrefix) || !strings.EqualFold(header[:len(claimPrefix)], claimPrefix) {
		return nil, false
	}
	rest := header[len(claimPrefix):]
	if dotted, ok := strings.CutPrefix(rest, "."); ok {
		return strings.Split(dotted, "."), true
	}
	inner, ok := strings.CutPrefix(rest, "[")
	if !ok || !strings.HasSuffix(inner, "]") {
		return nil, false
	}
	return strings.Split(strings.TrimSuffix(inner, "]"), "]["), true
}

// claimMatcher matches a claim that is the text or a list with it.
func claimMatcher(claims []string, want *networking.StringMatch) *matcherv3.MetadataMatcher {
	m := &matcherv3.MetadataMatcher{
		Filter: "envoy.filters.http.jwt_authn",
		Path:   []*matcherv3.MetadataMatcher_PathSegment{segment("payload")},
	}
	for _, c := range claims {
		m.Path = append(m.Path, segment(c))
	}
	text := stringMatcher(want)
	if text == nil {
		m.Value = &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_PresentMatch{PresentMatch: true}}
		return m
	}
	value := &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_StringMatch{StringMatch: text}}
	list := &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_ListMatch{ListMatch: &matcherv3.ListMatcher{
		MatchPattern: &matcherv3.ListMatcher_OneOf{OneOf: value},
	}}}
	m.Value = &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_OrMatch{OrMatch: &matcherv3.OrMatcher{
		ValueMatchers: []*matcherv3.ValueMatcher{value, list},
	}}}
	return m
}

func segment(key string) *matcherv3.MetadataMatcher_PathSegment {
	return &matcherv3.MetadataMatcher_PathSegment{Segment: &matcherv3.MetadataMatcher_PathSegment_Key{Key: key}}
}
