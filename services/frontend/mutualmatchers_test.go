package frontend_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/simulate"
)

// sourceMatchers are policies of web by every field of a source, and by the conditions that
// mean the same, with the callers that pass: c is client, o another account of its
// namespace, s the account client of web's own namespace, p has no certificate; t is a token
// of ann. What passes is what passes in Istio.
var sourceMatchers = []struct{ spec, passes string }{
	{`rules: [{from: [{source: {principals: [cluster.local/ns/client/sa/client]}}]}]`, "c ct"},
	{`rules: [{from: [{source: {principals: ["cluster.local/ns/client/*"]}}]}]`, "c ct o"},
	{`rules: [{from: [{source: {principals: ["*/sa/client"]}}]}]`, "c ct s"},
	{`rules: [{from: [{source: {principals: ["*"]}}]}]`, "c ct o s"},
	{`rules: [{from: [{source: {notPrincipals: [cluster.local/ns/client/sa/client]}}]}]`, "o p pt s"},
	{`rules: [{from: [{source: {notPrincipals: ["*"]}}]}]`, "p pt"},
	{`rules: [{from: [{source: {namespaces: [client]}}]}]`, "c ct o"},
	{`rules: [{from: [{source: {namespaces: ["cli*"]}}]}]`, "c ct o"},
	{`rules: [{from: [{source: {namespaces: ["*op"]}}]}]`, "s"},
	{`rules: [{from: [{source: {notNamespaces: [client]}}]}]`, "p pt s"},
	{`rules: [{from: [{source: {serviceAccounts: [client/client]}}]}]`, "c ct"},
	{`rules: [{from: [{source: {serviceAccounts: [client]}}]}]`, "s"}, // of the policy's namespace
	{`rules: [{from: [{source: {notServiceAccounts: [client/client]}}]}]`, "o p pt s"},
	{`rules: [{from: [{source: {trustDomains: [cluster.local]}}]}]`, "c ct o s"},
	{`rules: [{from: [{source: {notTrustDomains: [cluster.local]}}]}]`, "p pt"},
	{`rules: [{from: [{source: {requestPrincipals: ["https://idp.example/ann"]}}]}]`, "ct pt"},
	{`rules: [{from: [{source: {requestPrincipals: ["https://idp.example/bob"]}}]}]`, ""},
	{`rules: [{from: [{source: {requestPrincipals: ["*"]}}]}]`, "ct pt"},
	{`rules: [{from: [{source: {notRequestPrincipals: ["*"]}}]}]`, "c o p s"},
	{`rules: [{from: [{source: {namespaces: [client], notPrincipals: [cluster.local/ns/client/sa/client]}}]}]`, "o"},
	{`rules: [{from: [{source: {namespaces: [client], requestPrincipals: ["*"]}}]}]`, "ct"},
	{`rules: [{from: [{source: {serviceAccounts: [client/other]}}, {source: {requestPrincipals: ["*"]}}]}]`, "ct o pt"},
	{`rules: [{when: [{key: source.principal, values: [cluster.local/ns/client/sa/client]}]}]`, "c ct"},
	{`rules: [{when: [{key: source.namespace, notValues: [client]}]}]`, "p pt s"},
	{`rules: [{when: [{key: request.auth.principal, values: ["https://idp.example/ann"]}]}]`, "ct pt"},
	{`rules: [{when: [{key: "request.auth.claims[sub]", notValues: [ann]}]}]`, "c o p s"},
	{`action: DENY, rules: [{from: [{source: {principals: [cluster.local/ns/client/sa/client]}}]}]`, "o p pt s"},
	{`action: DENY, rules: [{from: [{source: {principals: ["*"]}}]}]`, "p pt"},
	{`action: DENY, rules: [{from: [{source: {notPrincipals: ["*"]}}]}]`, "c ct o s"},
	{`action: DENY, rules: [{from: [{source: {namespaces: [client]}}]}]`, "p pt s"},
	{`action: DENY, rules: [{from: [{source: {notNamespaces: [client]}}]}]`, "c ct o"},
	{`action: DENY, rules: [{from: [{source: {serviceAccounts: [client/client]}}]}]`, "o p pt s"},
	{`action: DENY, rules: [{from: [{source: {notServiceAccounts: [client/client]}}]}]`, "c ct"},
	{`action: DENY, rules: [{from: [{source: {trustDomains: [cluster.local]}}]}]`, "p pt"},
	{`action: DENY, rules: [{from: [{source: {requestPrincipals: ["https://idp.example/*"]}}]}]`, "c o p s"},
	{`action: DENY, rules: [{from: [{source: {notRequestPrincipals: ["*"]}}]}]`, "ct pt"},
	{`action: DENY, rules: [{when: [{key: source.principal, notValues: [cluster.local/ns/client/sa/client]}]}]`, "c ct"},
}

// POL-4, POL-5: a real Envoy that demands or offers mutual TLS decides by every field about
// callers as Istio does, for requests and for connections, and the simulation decides alike
// (POL-16).
func TestSourceMatchers(t *testing.T) {
	p := newPeers(t)
	token, keys := issue(t, "https://idp.example", "ann")
	p.mesh.Publish(meshtest.YAML(t, fmt.Sprintf(`
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: shop}
spec: {jwtRules: [{issuer: "https://idp.example", jwks: %q}]}
`, keys))...)
	certificates := map[string]string{"c": clientIdentity, "o": "spiffe://cluster.local/ns/client/sa/other", "s": "spiffe://cluster.local/ns/shop/sa/client"}
	for _, m := range sourceMatchers {
		policy := meshtest.YAML(t, "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: p, namespace: shop}\nspec: {"+m.spec+"}\n")[0]
		p.applied(p.mesh.Publish(policy))
		simulated := p.mesh.simulated(t, p.nodes["web"])
		for _, port := range []string{"http", "tcp"} {
			if port == "tcp" && strings.Contains(strings.ToLower(m.spec), "request") {
				continue // no connection has tokens (AZ-7)
			}
			for _, who := range []string{"c", "ct", "o", "p", "pt", "s"} {
				name, hasToken := strings.CutSuffix(who, "t")
				if hasToken && port == "tcp" {
					continue
				}
				w := way{name: who, outside: true}
				call := simulate.Call{Inbound: true, Address: netip.MustParseAddr("127.0.0.2"), Port: uint32(p.targets[port]), From: netip.MustParseAddr("127.0.0.1"), TCP: port == "tcp"}
				if port == "http" {
					call.Method, call.Host, call.Path, call.Headers = "GET", p.host, "/", map[string][]string{}
				}
				if uri := certificates[name]; uri != "" {
					pair := p.servers.Peer("x", uri)
					w.tls, call = showing(pair), p.shown(pair, false, port)
				}
				if hasToken {
					w.token, call.Now = token, time.Now()
					call.Headers["authorization"] = []string{"Bearer " + token}
				}
				want := slices.Contains(strings.Fields(m.passes), who)
				if got, err := p.call(w, port); (err == nil) != want {
					t.Errorf("%s\n%s to %s: %q, %v; want it to pass: %v", m.spec, who, port, got, err, want)
				}
				if o := simulated.Call(call); o.Unknown != "" || (!o.Refused && !o.Closed) != want {
					t.Errorf("%s\nsimulated %s to %s, want it to pass: %v\n%s", m.spec, who, port, want, strings.Join(o.Lines(), "\n"))
				}
			}
		}
	}
}

// issue returns a token of a subject, and the keys of its issuer.
func issue(t *testing.T, issuer, subject string) (token, keys string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	set, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &key.PublicKey, KeyID: "k", Algorithm: "ES256"}}})
	if err != nil {
		t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "k"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(fmt.Appendf(nil, `{"iss":%q,"sub":%q,"exp":%d}`, issuer, subject, time.Now().Add(time.Hour).Unix()))
	if err != nil {
		t.Fatal(err)
	}
	if token, err = signed.CompactSerialize(); err != nil {
		t.Fatal(err)
	}
	return token, string(set)
}
