package authz

import (
	"strings"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

func onToken(path []string, value *matcherv3.ValueMatcher) *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_SourcedMetadata{
		SourcedMetadata: metadata(jwtFilter, append([]string{payload}, path...), value),
	}}
}

// claim matches a claim that is a text, or a list with a matching text: the audience
// of a token can be either (POL-11).
func (t *translator) claim(path ...string) caller {
	return func(v string, _ bool) (*rbacv3.Principal, bool) {
		return onToken(path, &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_OrMatch{OrMatch: &matcherv3.OrMatcher{
			ValueMatchers: []*matcherv3.ValueMatcher{stringValue(text(v)), inList(text(v))},
		}}}), !t.tcp
	}
}

// requestPrincipal matches ISSUER/SUBJECT of a token. As in Istio the last slash of a
// value is the one between them: with another one the subject `tenant/ann` of
// https://idp would pass for ann of https://idp/tenant, which is another issuer. A match
// that forbids takes every slash, and a star may cover it.
func (t *translator) requestPrincipal(v string, wide bool) (*rbacv3.Principal, bool) {
	var some []*rbacv3.Principal
	add := func(iss, sub *matcherv3.StringMatcher) {
		some = append(some, callers.all([]*rbacv3.Principal{
			onToken([]string{"iss"}, stringValue(iss)), onToken([]string{"sub"}, stringValue(sub)),
		}))
	}
	end, isSuffix := strings.CutPrefix(v, "*")
	begin, isPrefix := strings.CutSuffix(v, "*")
	isPrefix = isPrefix && !isSuffix
	last := strings.LastIndex(v, "/")
	switch {
	case isSuffix && (last < 0 || wide):
		add(present(), suffixed(end))
	case isPrefix && (last < 0 || wide):
		add(prefixed(begin), present())
	case last < 0:
		add(exactly(v), exactly(""))
	}
	for i := range len(v) {
		if v[i] != '/' || i != last && !wide {
			continue
		}
		iss, sub := exactly(v[:i]), exactly(v[i+1:])
		if isSuffix {
			iss = suffixed(v[1:i])
		}
		if isPrefix {
			sub = prefixed(strings.TrimSuffix(v[i+1:], "*"))
		}
		add(iss, sub)
	}
	return callers.either(some), !t.tcp
}
