package policy

import (
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/re2"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds/authz"
	"meshlog.dev/services/mesh/xds/callee"
	"meshlog.dev/services/mesh/xds/jwt"
	"meshlog.dev/services/mesh/xds/piece"
)

// Parts returns the parts of the slots of a class.
func Parts(_ *index.Reader, class index.ECDSClass) []piece.Part {
	parts := make([]piece.Part, len(names))
	for i, name := range names {
		s := slot{name: name, selected: class.Selected, principalNames: class.PrincipalNames}
		switch {
		case name == Custom:
			s.from = callee.From(class.Services, class.Scope.Imports, class.Client == index.ClientRouter)
		case name == JWT:
			s.router = class.Client == index.ClientRouter
			if class.Fetches {
				s.from, s.scope = callee.From(class.Scope.Services, class.Scope.Imports, s.router), class.Scope
			}
		}
		parts[i] = s
	}
	return parts
}

// read returns the policies of selectors.
func read(r *index.Reader, selected index.SelectorSet) []world.Object {
	var all []world.Object
	for _, selector := range selected.Selectors() {
		for _, o := range r.Policies(selector) {
			all = append(all, *o)
		}
	}
	return all
}

// authorization returns the AuthorizationPolicies among policies.
func authorization(policies []world.Object) []world.Object {
	return slices.DeleteFunc(policies, func(p world.Object) bool { return p.Key.Kind != "AuthorizationPolicy" })
}

func options(r *index.Reader, principalNames bool) authz.Options {
	return authz.Options{TrustDomains: r.TrustDomains(), LocalApart: r.Trust().Apart("cluster.local"), PrincipalNames: principalNames, MaxRegex: re2.Stock}
}

// slot is the filter of a slot for proxies that policies of these selectors select.
type slot struct {
	name           string
	selected       index.SelectorSet
	principalNames bool          // as in index.ECDSClass
	from           callee.Caller // set only for Custom, and for JWT if proxies fetch keys
	scope          index.Scope
	router         bool // set only for JWT: the proxy routes by claims of tokens
}

// Make implements piece.Part.
func (s slot) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	f, problems := s.filter(r, read(r, s.selected))
	return []piece.Piece{{Name: s.name, Message: &corev3.TypedExtensionConfig{Name: s.name, TypedConfig: piece.Any(f)}}}, problems
}

// filters are the filters of the slots.
var filters = map[string]authz.Filter{CustomMatch: authz.Custom, Custom: authz.Custom, Audit: authz.Audit, Deny: authz.Deny, Allow: authz.Allow}

// filter returns the filter of a slot. One without policies is RBAC without rules, which
// lets all requests pass.
func (s slot) filter(r *index.Reader, policies []world.Object) (proto.Message, []problem.Diagnostic) {
	if s.name == JWT {
		keys := fetcher{r: r, from: s.from, scope: s.scope}
		if f := jwt.Filter(policies, jwt.Options{Keys: r.TokenKeys, Remote: keys.remote, RequireExpiration: true, Reroute: s.router}); f != nil {
			return f, keys.problems
		}
		return new(httpv3.RBAC), nil
	}
	policies = authorization(policies)
	o := options(r, s.principalNames)
	o.Only = filters[s.name] // each policy is translated once, not once for each slot
	all := authz.ForHTTP(policies, o)
	if s.name == Custom {
		if f, problems := customHTTP(r, policies, all.Custom, s.from); f != nil {
			return f, problems
		}
		return new(httpv3.RBAC), nil
	}
	of := map[string]*httpv3.RBAC{CustomMatch: all.Custom, Audit: all.Audit, Deny: all.Deny, Allow: all.Allow}
	if f := of[s.name]; f != nil {
		return f, nil
	}
	return new(httpv3.RBAC), nil
}
