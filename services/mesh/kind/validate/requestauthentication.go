package validate

import (
	"net/url"
	"time"

	"google.golang.org/protobuf/proto"

	security "istio.io/api/security/v1beta1"

	"meshlog.dev/services/mesh/jwks"
	"meshlog.dev/services/mesh/problem"
)

// RequestAuthentication checks a RequestAuthentication, so that Envoy takes the filter
// that is made of it.
func RequestAuthentication(m proto.Message) []problem.Diagnostic {
	return requestAuthentication(m.(*security.RequestAuthentication), (*checker).keySet)
}

// ProxyKeys checks a RequestAuthentication the keys of whose issuers proxies fetch
// themselves (POL-13).
func ProxyKeys(p *security.RequestAuthentication) []problem.Diagnostic {
	return requestAuthentication(p, (*checker).proxyKeys)
}

func requestAuthentication(p *security.RequestAuthentication, keys func(*checker, *fieldPath, *security.JWTRule)) []problem.Diagnostic {
	c := checker{kind: "RequestAuthentication"}
	c.selection(p.GetSelector(), p.GetTargetRef(), p.GetTargetRefs())
	for i, rule := range p.GetJwtRules() {
		at := root.field("jwtRules").item(i)
		c.jwtRule(at, rule)
		keys(&c, at, rule)
	}
	return c.result()
}

func (c *checker) jwtRule(at *fieldPath, r *security.JWTRule) {
	c.errorIf(r.GetIssuer() == "", at.field("issuer"), "write the iss of its tokens", isMissing)
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
}

// keySet checks where the keys of an issuer come from. Private keys are refused, and not
// repeated (KEY-1).
func (c *checker) keySet(at *fieldPath, r *security.JWTRule) {
	c.noEffect(r.GetTimeout() != nil, at.field("timeout"))
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

// proxyKeys checks where a proxy fetches the keys of an issuer.
func (c *checker) proxyKeys(at *fieldPath, r *security.JWTRule) {
	c.errorIf(r.GetJwks() != "", at.field("jwks"), "remove it, or the annotation", "is given, so no proxy can fetch the keys")
	if r.GetJwksUri() == "" {
		c.errorf(at.field("jwksUri"), "write the URL of the key set, at a service of the mesh, or remove the annotation", "is missing: proxies read no discovery documents")
	} else if _, _, ok := jwks.Endpoint(r.GetJwksUri()); !ok {
		c.errorf(at.field("jwksUri"), "write one like http://issuer.auth.svc.cluster.local:8080/keys", "is not the URL of a key set")
	}
	c.atLeast(at.field("timeout"), r.GetTimeout(), time.Millisecond)
	c.errorIf(r.GetTimeout().AsDuration() >= tooLongCheck, at.field("timeout"), "use 49 days or less", "is more than Envoy can count")
}
