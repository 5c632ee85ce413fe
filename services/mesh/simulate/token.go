package simulate

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
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
		ok, err := matchRoute(r.GetMatch(), c), error(nil)
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
		case v == accepted && c.Token != nil && p.request.Metadata[jwtAuthn] != nil:
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
		of := f.GetProviders()[t.ProviderName]
		if place := unsaid(of, c); place != "" {
			return refused, fmt.Errorf("the request has a token in %s of which the call does not say the claims", place)
		}
		return p.provider(of, c), nil
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

// unsaid returns the place where a provider finds a token that is not Call.Token; "": there
// is none.
func unsaid(of *jwtv3.JwtProvider, c Call) string {
	headers, params := of.GetFromHeaders(), of.GetFromParams()
	if len(headers)+len(params)+len(of.GetFromCookies()) == 0 {
		headers, params = []*jwtv3.JwtHeader{{Name: "Authorization", ValuePrefix: "Bearer "}}, []string{"access_token"}
	}
	for _, h := range headers {
		for _, line := range c.lines(strings.ToLower(h.GetName())) {
			if strings.Contains(line, h.GetValuePrefix()) && line != tokenLine {
				return "the header " + h.GetName()
			}
		}
	}
	_, query, _ := strings.Cut(c.Path, "?")
	values, err := url.ParseQuery(query)
	for _, name := range params {
		if err != nil || values.Has(name) {
			return "the parameter " + name
		}
	}
	for _, name := range of.GetFromCookies() {
		if strings.Contains(strings.Join(c.lines("cookie"), ";"), name+"=") {
			return "the cookie " + name
		}
	}
	return ""
}

// provider says what a provider makes of the request's token.
func (p *policies) provider(of *jwtv3.JwtProvider, c Call) verdict {
	switch {
	case c.Token == nil || !readsAuthorization(of):
		return missing
	case of.GetIssuer() != "" && of.GetIssuer() != c.Token.Claims["iss"]:
		return otherIssuer
	case !hasAudience(of.GetAudiences(), c.Token.Claims["aud"]):
		return otherAudience
	case c.Token.Invalid || !hasKeys(of):
		return refused
	}
	p.request.Metadata[jwtAuthn] = map[string]any{of.GetPayloadInMetadata(): normalized(c.Token.Claims, of)}
	pass(of, c)
	return accepted
}

// pass changes the headers of a request as a provider does that accepts its token.
func pass(of *jwtv3.JwtProvider, c Call) {
	if !of.GetForward() {
		delete(c.Headers, "authorization")
	}
	if name := of.GetForwardPayloadHeader(); name != "" {
		payload, err := json.Marshal(c.Token.Claims)
		if err == nil {
			c.Headers[strings.ToLower(name)] = []string{base64.RawURLEncoding.EncodeToString(payload)}
		}
	}
	for _, h := range of.GetClaimToHeaders() {
		var value any = c.Token.Claims
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

// readsAuthorization reports whether a provider looks for tokens where that of a call is.
func readsAuthorization(p *jwtv3.JwtProvider) bool {
	if len(p.GetFromHeaders())+len(p.GetFromParams())+len(p.GetFromCookies()) == 0 {
		return true
	}
	return slices.ContainsFunc(p.GetFromHeaders(), func(h *jwtv3.JwtHeader) bool {
		return strings.EqualFold(h.GetName(), "Authorization") && strings.TrimSpace(h.GetValuePrefix()) == "Bearer"
	})
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
