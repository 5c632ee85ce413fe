package index

import (
	"fmt"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/jwks"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
)

// TokenKeys returns the key set of a token issuer that was fetched for a rule with this
// jwksUri, as JSON; empty: it was never fetched (POL-12).
func (r *Reader) TokenKeys(issuer, uri string) string {
	name := jwks.Issuer{Issuer: issuer, URI: uri}.ObjectName()
	r.note(Input{Kind: InputJwks, B: name})
	return tokenKeys(r.pc.world, name)
}

func tokenKeys(w *world.World, name string) string {
	o := w.Winner(ident.Key{Kind: jwksKind, Name: name})
	if o == nil {
		return ""
	}
	m, _ := o.Message.(*registryv1.Jwks) // nil: a value that could not be read
	return m.GetKeys()
}

// tokenKeys reports the rules of RequestAuthentications whose keys were never fetched.
func (t *transition) tokenKeys(w *world.World, changes map[string][]change) {
	for _, c := range changes[requestsKind] {
		t.unfetched(w, c.Key, c.is)
	}
	if len(changes[jwksKind]) > 0 { // there are few of them
		for o := range w.Objects(requestsKind) {
			t.unfetched(w, o.Key, &o)
		}
	}
}

// unfetched replaces the problems of a RequestAuthentication about keys.
func (t *transition) unfetched(w *world.World, k ident.Key, o *world.Object) {
	var ds []problem.Diagnostic
	if o != nil {
		m, byProxies, _ := kind.RequestAuthentication(o.Message)
		for i, rule := range m.GetJwtRules() {
			if !byProxies && rule.GetJwks() == "" && tokenKeys(w, jwks.Issuer{Issuer: rule.GetIssuer(), URI: rule.GetJwksUri()}.ObjectName()) == "" {
				ds = append(ds, problem.Diagnostic{
					Severity: problem.Error, Code: "jwks-unfetched", Key: k, Field: fmt.Sprintf("spec.jwtRules[%d]", i),
					Reason: fmt.Sprintf("the keys of issuer %s were never fetched", rule.GetIssuer()),
					Advice: "run watcher-jwks; if it runs, `meshlog sources` has the reason",
					Effect: "no token of the issuer can be verified",
				})
			}
		}
	}
	t.problem(about{"token keys", "", k.Row()}, ds)
}
