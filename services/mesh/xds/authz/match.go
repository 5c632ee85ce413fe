package authz

import (
	"net/netip"
	"regexp"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meshlog.dev/services/mesh/re2"
)

func exactly(s string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: s}}
}

func prefixed(s string) *matcherv3.StringMatcher {
	if s == "" {
		return present()
	}
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: s}}
}

func suffixed(s string) *matcherv3.StringMatcher {
	if s == "" {
		return present()
	}
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Suffix{Suffix: s}}
}

// present matches every text but the empty one, also with line breaks: a claim of a
// token may have some.
func present() *matcherv3.StringMatcher { return expression("(?s).+") }

func expression(expr string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: expr}}}
}

// text matches a value that may have a star at an end.
func text(v string) *matcherv3.StringMatcher {
	if end, ok := strings.CutPrefix(v, "*"); ok {
		return suffixed(end)
	}
	if begin, ok := strings.CutSuffix(v, "*"); ok {
		return prefixed(begin)
	}
	return exactly(v)
}

// within returns an expression for a value that may have a star at an end, as a whole
// segment of a URI.
func within(v string) string {
	if v == "*" {
		return segment
	}
	if end, ok := strings.CutPrefix(v, "*"); ok {
		return anyPart + regexp.QuoteMeta(end)
	}
	if begin, ok := strings.CutSuffix(v, "*"); ok {
		return regexp.QuoteMeta(begin) + anyPart
	}
	return regexp.QuoteMeta(v)
}

// anywhere returns an expression for a value that may have a star at an end, which also
// covers slashes.
func anywhere(v string) string {
	if end, ok := strings.CutPrefix(v, "*"); ok {
		return ".*" + regexp.QuoteMeta(end)
	}
	if begin, ok := strings.CutSuffix(v, "*"); ok {
		return regexp.QuoteMeta(begin) + ".*"
	}
	return regexp.QuoteMeta(v)
}

// Expressions for a segment of a URI, and for a part of one.
const (
	segment = "[^/]+"
	anyPart = "[^/]*"
)

// regex returns a matcher of an expression, and false if the Envoys refuse it.
func (t *translator) regex(expr string) (*matcherv3.StringMatcher, bool) {
	size, err := re2.Size(expr)
	return expression(expr), err == nil && size <= t.MaxRegex
}

func header(name string, m *matcherv3.StringMatcher) *routev3.HeaderMatcher {
	return &routev3.HeaderMatcher{Name: name, HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: m}}
}

func hasHeader(name string) *routev3.HeaderMatcher {
	return &routev3.HeaderMatcher{Name: name, HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}}
}

// block reads an IP address or a CIDR block.
func block(s string) (*corev3.CidrRange, bool) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return nil, false
		}
		p = netip.PrefixFrom(a, a.BitLen())
	}
	return &corev3.CidrRange{AddressPrefix: p.Masked().Addr().String(), PrefixLen: wrapperspb.UInt32(uint32(p.Bits()))}, true
}

// metadata matches dynamic metadata of a filter.
func metadata(filter string, path []string, value *matcherv3.ValueMatcher) *rbacv3.SourcedMetadata {
	m := &matcherv3.MetadataMatcher{Filter: filter, Value: value}
	for _, key := range path {
		m.Path = append(m.Path, &matcherv3.MetadataMatcher_PathSegment{Segment: &matcherv3.MetadataMatcher_PathSegment_Key{Key: key}})
	}
	return &rbacv3.SourcedMetadata{MetadataMatcher: m}
}

func stringValue(m *matcherv3.StringMatcher) *matcherv3.ValueMatcher {
	return &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_StringMatch{StringMatch: m}}
}

// inList matches a list that has a matching text.
func inList(m *matcherv3.StringMatcher) *matcherv3.ValueMatcher {
	return &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_ListMatch{ListMatch: &matcherv3.ListMatcher{
		MatchPattern: &matcherv3.ListMatcher_OneOf{OneOf: stringValue(m)},
	}}}
}

// extension returns a typed extension, and false if a text in m is not UTF-8.
func extension(name string, m proto.Message) (*corev3.TypedExtensionConfig, bool) {
	packed := &anypb.Any{}
	err := anypb.MarshalFrom(packed, m, proto.MarshalOptions{Deterministic: true})
	return &corev3.TypedExtensionConfig{Name: name, TypedConfig: packed}, err == nil
}
