// Package jwt translates the RequestAuthentications that select a workload into Envoy's
// filter that verifies tokens (RA-1). A request without a token passes it, one with a bad
// token gets 401 (RA-4). What the token says is in the metadata of the filter, where the
// rules of package authz read it.
//
// It is pure.
package jwt

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	"google.golang.org/protobuf/types/known/emptypb"
	security "istio.io/api/security/v1beta1"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/world"
)

const (
	// payload is the key of the claims in the filter's metadata.
	payload = "payload"
	// skew is how far clocks may differ, in seconds (POL-11).
	skew = 60
	// closed is the provider that refuses every token.
	closed = "closed"
)

// spaced are the claims that are lists separated by spaces, as in Istio.
var spaced = []string{"scope", "permission"}

// The places where Envoy looks for a token if a rule names none.
const (
	defaultHeader = "Authorization"
	bearer        = "Bearer "
	defaultParam  = "access_token"
)

// Options say what the filter needs beside the policies.
type Options struct {
	// Keys returns the fetched key set of an issuer: that of a URI or, if it is empty, of
	// the issuer's discovery document. Without one it returns "".
	Keys func(issuer, uri string) string
	// Remote returns how proxies fetch the keys of a rule themselves (POL-13); nil: they
	// cannot.
	Remote func(Rule) *jwtv3.RemoteJwks
	// RequireExpiration refuses tokens that never end, which Envoy accepts (S26).
	RequireExpiration bool
	// Reroute makes Envoy look for the route of a request again when its token was
	// verified, because routes can match claims (VSM-7).
	Reroute bool
}

// Rule is a rule of a RequestAuthentication.
type Rule struct {
	*security.JWTRule
	Policy ident.Key
	Index  int  // in the policy
	remote bool // proxies fetch its keys
}

// Filter returns the filter of the RequestAuthentications among policies, or nil if there
// is none. A policy of which no value was ever good refuses every token (POL-15).
func Filter(policies []world.Object, o Options) *jwtv3.JwtAuthentication {
	var rules []Rule
	some, refuse := false, false
	for _, p := range policies {
		if p.Key.Kind != "RequestAuthentication" {
			continue
		}
		some = true
		m, remote, ok := kind.RequestAuthentication(p.Message)
		refuse = refuse || !ok
		for i, rule := range m.GetJwtRules() {
			rules = append(rules, Rule{rule, p.Key, i, remote})
		}
	}
	if !some {
		return nil
	}
	slices.SortStableFunc(rules, func(a, b Rule) int { return strings.Compare(a.GetIssuer(), b.GetIssuer()) })
	f := &jwtv3.JwtAuthentication{Providers: map[string]*jwtv3.JwtProvider{}, BypassCorsPreflight: true}
	var names []string
	for i, rule := range rules {
		name := fmt.Sprintf("origins-%d", i)
		f.Providers[name], names = o.provider(rule), append(names, name)
	}
	requires := anyOrigin(names)
	if refuse { // the other providers stay: Envoy removes the headers that they write from requests
		f.Providers[closed] = refusal(f.GetProviders())
		requires = optional(closed)
	}
	if requires != nil {
		f.Rules = []*jwtv3.RequirementRule{{
			Match:           &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
			RequirementType: &jwtv3.RequirementRule_Requires{Requires: requires},
		}}
	}
	return f
}

// provider returns the provider of a rule.
func (o Options) provider(rule Rule) *jwtv3.JwtProvider {
	p := &jwtv3.JwtProvider{
		Issuer:               rule.GetIssuer(),
		Audiences:            rule.GetAudiences(),
		Forward:              rule.GetForwardOriginalToken(),
		ForwardPayloadHeader: rule.GetOutputPayloadToHeader(),
		PayloadInMetadata:    payload,
		NormalizePayloadInMetadata: &jwtv3.JwtProvider_NormalizePayload{
			SpaceDelimitedClaims: append(slices.Clone(spaced), rule.GetSpaceDelimitedClaims()...),
		},
		FromParams:        rule.GetFromParams(),
		FromCookies:       rule.GetFromCookies(),
		ClockSkewSeconds:  skew,
		RequireExpiration: o.RequireExpiration,
		ClearRouteCache:   o.Reroute,
	}
	for _, h := range rule.GetFromHeaders() {
		p.FromHeaders = append(p.FromHeaders, &jwtv3.JwtHeader{Name: h.GetName(), ValuePrefix: h.GetPrefix()})
	}
	for _, c := range rule.GetOutputClaimToHeaders() {
		p.ClaimToHeaders = append(p.ClaimToHeaders, &jwtv3.JwtClaimToHeader{HeaderName: c.GetHeader(), ClaimName: c.GetClaim()})
	}
	if rule.remote {
		if p.JwksSourceSpecifier = inline(""); o.Remote != nil && rule.GetJwks() == "" {
			if from := o.Remote(rule); from != nil {
				p.JwksSourceSpecifier = &jwtv3.JwtProvider_RemoteJwks{RemoteJwks: from}
			}
		}
		return p
	}
	set := rule.GetJwks()
	if set == "" && o.Keys != nil {
		set = o.Keys(rule.GetIssuer(), rule.GetJwksUri())
	}
	p.JwksSourceSpecifier = inline(set)
	return p
}

// refusal returns a provider that refuses the tokens in all places where the others, or
// Envoy, look for one.
func refusal(others map[string]*jwtv3.JwtProvider) *jwtv3.JwtProvider {
	p := &jwtv3.JwtProvider{
		FromHeaders:         []*jwtv3.JwtHeader{{Name: defaultHeader, ValuePrefix: bearer}},
		FromParams:          []string{defaultParam},
		JwksSourceSpecifier: inline(""),
	}
	for _, o := range others {
		p.FromHeaders = append(p.FromHeaders, o.GetFromHeaders()...)
		p.FromParams = append(p.FromParams, o.GetFromParams()...)
		p.FromCookies = append(p.FromCookies, o.GetFromCookies()...)
	}
	compare := func(a, b *jwtv3.JwtHeader) int {
		return cmp.Or(strings.Compare(a.GetName(), b.GetName()), strings.Compare(a.GetValuePrefix(), b.GetValuePrefix()))
	}
	slices.SortFunc(p.FromHeaders, compare)
	p.FromHeaders = slices.CompactFunc(p.FromHeaders, func(a, b *jwtv3.JwtHeader) bool { return compare(a, b) == 0 })
	for _, texts := range []*[]string{&p.FromParams, &p.FromCookies} {
		slices.Sort(*texts)
		*texts = slices.Compact(*texts)
	}
	return p
}

// anyOrigin requires a valid token of one of the origins, or that none has a bad one.
// Rules with the same places need the first: each refuses the tokens of the others.
func anyOrigin(names []string) *jwtv3.JwtRequirement {
	switch len(names) {
	case 0:
		return nil
	case 1:
		return optional(names[0])
	}
	var some, each []*jwtv3.JwtRequirement
	for _, name := range names {
		some, each = append(some, valid(name)), append(each, optional(name))
	}
	return either(append(some, all(each...))...)
}

// optional requires that a token is valid if there is one.
func optional(name string) *jwtv3.JwtRequirement {
	return either(valid(name), &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_AllowMissing{AllowMissing: &emptypb.Empty{}}})
}

func valid(name string) *jwtv3.JwtRequirement {
	return &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_ProviderName{ProviderName: name}}
}

func either(some ...*jwtv3.JwtRequirement) *jwtv3.JwtRequirement {
	return &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_RequiresAny{RequiresAny: &jwtv3.JwtRequirementOrList{Requirements: some}}}
}

func all(each ...*jwtv3.JwtRequirement) *jwtv3.JwtRequirement {
	return &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_RequiresAll{RequiresAll: &jwtv3.JwtRequirementAndList{Requirements: each}}}
}
