package simulate

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
)

// Token is the token that a request has in its header Authorization, behind "Bearer ".
type Token struct {
	// Invalid: its signature is not one by a key of its issuer, or it has ended.
	// Otherwise it is taken as signed, and as one that ends later, also without exp.
	Invalid bool
	// Claims are values of encoding/json, by name.
	Claims map[string]any
}

// verdict is what a requirement of tokens comes to.
type verdict int

const (
	accepted verdict = iota
	missing
	otherIssuer
	otherAudience
	refused
)

func (v verdict) String() string {
	return [...]string{"the token is accepted", "there is no token", "no RequestAuthentication has the token's issuer",
		"the token is for another audience", "the token is invalid"}[v]
}

// jwtAuthn is the name under which the filter writes claims.
const jwtAuthn = "envoy.filters.http.jwt_authn"

// tokens runs the filter that verifies tokens. Claims of an accepted one are metadata,
// which rules look at.
func (p *policies) tokens(filter string, f *jwtv3.JwtAuthentication, c Call) {
	if p.ended() {
		return
	}
	for _, of := range f.GetProviders() { // a client cannot send what the filter writes
		delete(c.Headers, strings.ToLower(of.GetForwardPayloadHeader()))
		for _, h := range of.GetClaimToHeaders() {
			delete(c.Headers, strings.ToLower(h.GetHeaderName()))
		}
	}
	preflight := c.Method == "OPTIONS" && c.has("origin") && c.has("access-control-request-method")
	if f.GetBypassCorsPreflight() && preflight {
		return
	}
	for _, r := range f.GetRules() {
		ok, err := matchRoute(r.GetMatch(), c, p.request.Metadata), error(nil)
		if r.GetRequirementName() != "" {
			err = fmt.Errorf("unknown requirement %s", r.GetRequirementName())
		}
		if err != nil {
			p.unknown(filter, err)
			return
		}
		if !ok {
			continue
		}
		v, err := p.requires(f, r.GetRequires(), c)
		switch {
		case err != nil:
			p.unknown(filter, err)
		case v == accepted && p.request.Metadata[jwtAuthn] != nil:
			p.decide(Decision{Filter: filter, Action: "JWT", Result: v.String()}, false, 0)
		case v == otherAudience:
			p.decide(Decision{Filter: filter, Action: "JWT", Result: v.String()}, true, 403)
		case v != accepted:
			p.decide(Decision{Filter: filter, Action: "JWT", Result: v.String()}, true, 401)
		}
		return
	}
}

// requires evaluates a requirement of tokens.
func (p *policies) requires(f *jwtv3.JwtAuthentication, r *jwtv3.JwtRequirement, c Call) (verdict, error) {
	switch t := r.GetRequiresType().(type) {
	case nil:
		return accepted, nil
	case *jwtv3.JwtRequirement_ProviderName:
		return p.provider(f.GetProviders()[t.ProviderName], c)
	case *jwtv3.JwtRequirement_RequiresAll:
		for _, r := range t.RequiresAll.GetRequirements() {
			if v, err := p.requires(f, r, c); v != accepted || err != nil {
				return v, err
			}
		}
		return accepted, nil
	case *jwtv3.JwtRequirement_RequiresAny:
		return p.requiresAny(f, t.RequiresAny.GetRequirements(), c)
	}
	return refused, fmt.Errorf("unknown requirement %T", r.GetRequiresType())
}

// requiresAny evaluates a list of which one has to hold. A token that none accepts is
// refused, also if a token may be missing.
func (p *policies) requiresAny(f *jwtv3.JwtAuthentication, of []*jwtv3.JwtRequirement, c Call) (verdict, error) {
	worst, optional := missing, false
	for _, r := range of {
		if r.GetAllowMissing() != nil {
			optional = true
			continue
		}
		v, err := p.requires(f, r, c)
		if v == accepted || err != nil {
			return v, err
		}
		if v != otherIssuer || worst == missing {
			if v != missing {
				worst = v
			}
		}
	}
	if worst == missing && optional {
		return accepted, nil
	}
	return worst, nil
}

// pass changes the headers of a request as a provider does that accepts a token of it.
func pass(of *jwtv3.JwtProvider, c Call, t shown, claims map[string]any) {
	if !of.GetForward() && t.header != "" {
		delete(c.Headers, t.header)
	}
	if name := of.GetForwardPayloadHeader(); name != "" {
		payload, err := json.Marshal(claims)
		if err == nil {
			c.Headers[strings.ToLower(name)] = []string{base64.RawURLEncoding.EncodeToString(payload)}
		}
	}
	for _, h := range of.GetClaimToHeaders() {
		var value any = claims
		for _, name := range strings.Split(h.GetClaimName(), ".") {
			fields, _ := value.(map[string]any)
			value = fields[name]
		}
		text, ok := value.(string)
		if !ok && value != nil {
			b, err := json.Marshal(value)
			if _, isBool := value.(bool); err == nil {
				text, ok = string(b), true
				if _, isNumber := value.(float64); !isBool && !isNumber {
					text = base64.StdEncoding.EncodeToString(b)
				}
			}
		}
		if ok {
			c.Headers[strings.ToLower(h.GetHeaderName())] = []string{text}
		}
	}
}

// hasAudience reports whether a token is for one of audiences; without any, all tokens are.
func hasAudience(audiences []string, aud any) bool {
	plain := func(s string) string {
		s = strings.TrimPrefix(strings.TrimPrefix(s, "https://"), "http://")
		return strings.TrimSuffix(s, "/")
	}
	list, ok := aud.([]any)
	if !ok {
		list = []any{aud}
	}
	return len(audiences) == 0 || slices.ContainsFunc(list, func(v any) bool {
		s, ok := v.(string)
		return ok && slices.ContainsFunc(audiences, func(a string) bool { return plain(a) == plain(s) })
	})
}

// hasKeys reports whether a provider has keys that a token can be signed with: before the
// keys of an issuer are fetched, it has one that nobody has.
func hasKeys(p *jwtv3.JwtProvider) bool {
	var set struct {
		Keys []struct{ Kid string }
	}
	if p.GetLocalJwks() == nil {
		return true
	}
	err := json.Unmarshal([]byte(p.GetLocalJwks().GetInlineString()), &set)
	return err == nil && slices.ContainsFunc(set.Keys, func(k struct{ Kid string }) bool { return k.Kid != "nobody" })
}

// normalized returns claims with those as lists that are separated by spaces.
func normalized(claims map[string]any, p *jwtv3.JwtProvider) map[string]any {
	claims = maps.Clone(claims)
	for _, name := range p.GetNormalizePayloadInMetadata().GetSpaceDelimitedClaims() {
		if text, ok := claims[name].(string); ok {
			var list []any
			for _, word := range strings.Fields(text) {
				list = append(list, word)
			}
			claims[name] = list
		}
	}
	return claims
}
