package validate

import (
	"net/url"

	"google.golang.org/protobuf/proto"

	security "istio.io/api/security/v1beta1"

	"meshlog.dev/services/mesh/jwks"
	"meshlog.dev/services/mesh/problem"
)

// RequestAuthentication checks a RequestAuthentication, so that Envoy takes the filter
// that is made of it.
func RequestAuthentication(m proto.Message) []problem.Diagnostic {
	p := m.(*security.RequestAuthentication)
	c := checker{kind: "RequestAuthentication"}
	c.selection(p.GetSelector(), p.GetTargetRef(), p.GetTargetRefs())
	for i, rule := range p.GetJwtRules() {
		c.jwtRule(root.field("jwtRules").item(i), rule)
	}
	return c.result()
}

func (c *checker) jwtRule(at *fieldPath, r *security.JWTRule) {
	c.errorIf(r.GetIssuer() == "", at.field("issuer"), "write the iss of its tokens", isMissing)
	c.keySet(at, r)
	for _, l := range []struct {
		name   string
		values []string
	}{
		{"audiences", r.GetAudiences()}, {"fromParams", r.GetFromParams()}, {"fromCookies", r.GetFromCookies()},
		{"spaceDelimitedClaims", r.GetSpaceDelimitedClaims()},
	} {
		for i, v := range l.values {
			c.errorIf(v == "", at.field(l.name).item(i), "write a value, or remove it", isEmpty)
		}
	}
	for i, h := range r.GetFromHeaders() {
		c.header(at.field("fromHeaders").item(i).field("name"), h.GetName())
		c.oneLine(at.field("fromHeaders").item(i).field("prefix"), h.GetPrefix())
	}
	if h := r.GetOutputPayloadToHeader(); h != "" {
		c.header(at.field("outputPayloadToHeader"), h)
	}
	seen := map[string]bool{}
	for i, o := range r.GetOutputClaimToHeaders() {
		to := at.field("outputClaimToHeaders").item(i)
		c.header(to.field("header"), o.GetHeader())
		c.errorIf(!first(seen, o.GetHeader()), to.field("header"), keepOne, isTwice, o.GetHeader())
		c.errorIf(o.GetClaim() == "", to.field("claim"), "name a claim", isEmpty)
	}
	c.noEffect(r.GetTimeout() != nil, at.field("timeout"))
}

// keySet checks where the keys of an issuer come from. Private keys are refused, and not
// repeated (KEY-1).
func (c *checker) keySet(at *fieldPath, r *security.JWTRule) {
	if set := r.GetJwks(); set != "" {
		_, err := jwks.Public([]byte(set))
		if err != nil {
			c.errorf(at.field("jwks"), "write the public keys of the issuer, and replace a key that is no longer secret", "%v", err)
		}
		if r.GetJwksUri() != "" {
			c.warnf(at.field("jwksUri"), "remove it", "has no effect beside jwks")
		}
		return
	}
	if uri := r.GetJwksUri(); uri != "" {
		u, err := url.Parse(uri)
		c.errorIf(err != nil || u.Host == "" || u.User != nil, at.field("jwksUri"), "write a URL that begins with https://", "is not the URL of a key set")
		if err == nil && u.Scheme != "https" {
			c.warnf(at.field("jwksUri"), "use https", "keys are fetched by https only, so every token is refused")
		}
	}
}
