package simulate

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	"github.com/go-jose/go-jose/v4"
)

// shown is a token that a provider finds in a request.
type shown struct {
	text   string
	header string // in lower case; empty: it is elsewhere
	place  string // for people
}

// shownTo returns the tokens that a provider finds, in the order in which Envoy looks for
// them.
func shownTo(of *jwtv3.JwtProvider, c Call) []shown {
	var all []shown
	headers, params := of.GetFromHeaders(), of.GetFromParams()
	if len(headers)+len(params)+len(of.GetFromCookies()) == 0 {
		headers, params = []*jwtv3.JwtHeader{{Name: "Authorization", ValuePrefix: "Bearer "}}, []string{"access_token"}
	}
	headers = slices.SortedFunc(slices.Values(headers), func(a, b *jwtv3.JwtHeader) int {
		return strings.Compare(strings.ToLower(a.GetName())+a.GetValuePrefix(), strings.ToLower(b.GetName())+b.GetValuePrefix())
	})
	for _, h := range headers {
		name := strings.ToLower(h.GetName())
		for _, line := range c.lines(name) {
			if _, rest, ok := strings.Cut(line, h.GetValuePrefix()); ok {
				if start := strings.IndexFunc(rest, isTokenChar); start >= 0 && h.GetValuePrefix() != "" {
					rest = rest[start:]
				}
				if line == tokenLine { // it stands for a token behind Bearer
					if rest = ""; strings.TrimSpace(h.GetValuePrefix()) == "Bearer" {
						rest = tokenLine
					}
				}
				all = append(all, shown{rest, name, "the header " + h.GetName()})
			}
		}
	}
	_, query, _ := strings.Cut(c.Path, "?")
	for _, name := range slices.Sorted(slices.Values(params)) {
		for pair := range strings.SplitSeq(query, "&") {
			if key, value, _ := strings.Cut(pair, "="); decoded(key) == name {
				all = append(all, shown{text: decoded(value), place: "the parameter " + name})
				break
			}
		}
	}
	for _, name := range slices.Sorted(slices.Values(of.GetFromCookies())) {
		for pair := range strings.SplitSeq(strings.Join(c.lines("cookie"), ";"), ";") {
			if key, value, _ := strings.Cut(strings.TrimSpace(pair), "="); key == name {
				all = append(all, shown{text: strings.Trim(value, `"`), place: "the cookie " + name})
				break
			}
		}
	}
	return all
}

func isTokenChar(r rune) bool {
	return r == '-' || r == '_' || r == '.' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
}

func decoded(s string) string {
	if d, err := url.PathUnescape(s); err == nil {
		return d
	}
	return s
}

// algorithms are those that Envoy reads. A key of an issuer decides which of them counts.
var algorithms = []jose.SignatureAlgorithm{
	jose.ES256, jose.ES384, jose.ES512, jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512,
	jose.HS256, jose.HS384, jose.HS512, jose.EdDSA,
}

// errFetched: only a proxy knows the keys.
var errFetched = errors.New("the proxy itself fetches the keys of the token's issuer")

// verify judges the text of a token as a provider does at that time, and returns its claims
// if it is accepted.
func verify(of *jwtv3.JwtProvider, text string, now time.Time) (verdict, map[string]any, error) {
	token, err := jose.ParseSignedCompact(text, algorithms)
	if err != nil {
		return refused, nil, nil //nolint:nilerr // Envoy refuses what is no token
	}
	var claims map[string]any
	if json.Unmarshal(token.UnsafePayloadWithoutVerification(), &claims) != nil || claims == nil {
		return refused, nil, nil
	}
	ends, endsOK := claims["exp"].(float64)
	begins, _ := claims["nbf"].(float64)
	at, skew := float64(now.Unix()), float64(of.GetClockSkewSeconds())
	if skew == 0 {
		skew = 60 // Envoy's default
	}
	switch {
	case of.GetIssuer() != "" && of.GetIssuer() != claims["iss"]:
		return otherIssuer, nil, nil
	case endsOK && at > ends+skew, begins > at+skew, !endsOK && of.GetRequireExpiration():
		return refused, nil, nil
	case !hasAudience(of.GetAudiences(), claims["aud"]):
		return otherAudience, nil, nil
	case of.GetLocalJwks() == nil:
		return refused, nil, errFetched
	}
	var set jose.JSONWebKeySet
	if err := json.Unmarshal([]byte(of.GetLocalJwks().GetInlineString()), &set); err != nil {
		return refused, nil, fmt.Errorf("the provider's keys: %w", err)
	}
	header := token.Signatures[0].Header
	for _, k := range set.Keys {
		if header.KeyID != "" && k.KeyID != "" && header.KeyID != k.KeyID || k.Algorithm != "" && k.Algorithm != header.Algorithm {
			continue
		}
		if _, err := token.Verify(k.Key); err == nil {
			return accepted, claims, nil
		}
	}
	return refused, nil, nil
}

// provider says what a provider makes of the tokens of a request, which all have to be good.
func (p *policies) provider(of *jwtv3.JwtProvider, c Call) (verdict, error) {
	tokens := shownTo(of, c)
	if len(tokens) == 0 {
		return missing, nil
	}
	for _, t := range slices.Backward(tokens) { // as Envoy does: the first one's claims stay
		v, claims, err := refused, map[string]any(nil), error(nil)
		switch {
		case t.text == "": // no token
		case t.text == tokenLine && c.Token != nil:
			v, claims = given(of, c.Token)
		case c.Now.IsZero():
			return refused, fmt.Errorf("the request has a token in %s, and the call does not name its claims", t.place)
		default:
			v, claims, err = verify(of, t.text, c.Now)
		}
		if v != accepted || err != nil {
			return v, err
		}
		p.request.Metadata[jwtAuthn] = map[string]any{of.GetPayloadInMetadata(): normalized(claims, of)}
		p.rerouted = p.rerouted || of.GetClearRouteCache()
		pass(of, c, t, maps.Clone(claims))
	}
	return accepted, nil
}

// given judges a token whose claims the call names, as a provider does.
func given(of *jwtv3.JwtProvider, t *Token) (verdict, map[string]any) {
	switch {
	case of.GetIssuer() != "" && of.GetIssuer() != t.Claims["iss"]:
		return otherIssuer, nil
	case !hasAudience(of.GetAudiences(), t.Claims["aud"]):
		return otherAudience, nil
	case t.Invalid || !hasKeys(of):
		return refused, nil
	}
	return accepted, t.Claims
}
