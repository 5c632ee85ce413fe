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

// requestPrincipal matches ISSUER/SUBJECT of a token. Both can have slashes, so each
// slash of a value may be the one between them.
func (t *translator) requestPrincipal(v string, _ bool) (*rbacv3.Principal, bool) {
	end, isSuffix := strings.CutPrefix(v, "*")
	fixed, isPrefix := end, false
	if !isSuffix {
		fixed, isPrefix = strings.CutSuffix(v, "*")
	}
	var some []*rbacv3.Principal
	add := func(iss, sub *matcherv3.StringMatcher) {
		some = append(some, callers.all([]*rbacv3.Principal{
			onToken([]string{"iss"}, stringValue(iss)), onToken([]string{"sub"}, stringValue(sub)),
		}))
	}
	switch {
	case isSuffix: // the star may cover the slash
		add(present(), suffixed(fixed))
	case isPrefix:
		add(prefixed(fixed), present())
	}
	for i := range len(fixed) {
		if fixed[i] != '/' {
			continue
		}
		iss, sub := exactly(fixed[:i]), exactly(fixed[i+1:])
		if isSuffix {
			iss = suffixed(fixed[:i])
		}
		if isPrefix {
			sub = prefixed(fixed[i+1:])
		}
		add(iss, sub)
	}
	return callers.either(some), !t.tcp
}
