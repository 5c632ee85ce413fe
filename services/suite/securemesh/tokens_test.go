package securemesh_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"meshlog.dev/deploy/testkit/certtest"
)

// untilFetched makes TestProxiesFetchKeys five minutes longer.
var untilFetched = flag.Bool("fetched", false, "go on until Envoy fetches keys again")

// tokens are a service that verifies tokens, and the issuer of these, which is STRICT.
const tokens = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: issuer, namespace: issuer}
spec:
  hosts: [issuer.mesh]
  addresses: [10.99.0.1]
  exportTo: [cart]
  resolution: STATIC
  location: MESH_INTERNAL
  ports: [{number: %[1]d, name: http, protocol: HTTP, targetPort: %[2]d}]
  endpoints: [{address: 127.0.0.4, ports: {http: %[2]d}, serviceAccount: issuer}]
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: all, namespace: issuer}
spec: {mtls: {mode: STRICT}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: cart, namespace: cart}
spec:
  hosts: [cart.mesh]
  addresses: [10.99.0.2]
  exportTo: ["."]
  resolution: STATIC
  location: MESH_INTERNAL
  ports: [{number: %[3]d, name: http, protocol: HTTP, targetPort: %[4]d}]
  endpoints: [{address: 127.0.0.3, ports: {http: %[4]d}, serviceAccount: cart}]
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: cart, annotations: {meshlog.dev/jwks: envoy}}
spec: {jwtRules: [{issuer: "https://issuer.mesh", jwksUri: "http://issuer.mesh:%[1]d/keys", audiences: [cart%[5]s]}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: tokens, namespace: cart}
spec: {action: DENY, rules: [{from: [{source: {notRequestPrincipals: ["*"]}}], to: [{operation: {paths: [/private]}}]}]}
`

// signer is a key of an issuer.
type signer struct {
	key *ecdsa.PrivateKey
	kid string
}

func newSigner(t *testing.T, kid string) *signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	return &signer{key, kid}
}

func (s *signer) set() []byte {
	b, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &s.key.PublicKey, KeyID: s.kid, Algorithm: "ES256", Use: "sig"}}})
	if err != nil {
		panic(err)
	}
	return b
}

func (s *signer) token(t *testing.T) string {
	t.Helper()
	by, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: s.key, KeyID: s.kid}}, nil)
	must(t, err)
	claims, err := json.Marshal(map[string]any{"iss": "https://issuer.mesh", "sub": "ann", "aud": "cart", "exp": time.Now().Add(time.Hour).Unix()})
	must(t, err)
	signed, err := by.Sign(claims)
	must(t, err)
	text, err := signed.CompactSerialize()
	must(t, err)
	return text
}

// request asks for a URL with tokens. The error of a status that is not 200 begins with it.
func request(t *testing.T, url string, tokens ...string) error {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, url, nil)
	must(t, err)
	for _, token := range tokens {
		r.Header.Add("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, b)
	}
	return err
}

// POL-13: the proxy of a workload fetches the keys of an issuer behind STRICT itself, with its
// certificate. Before the issuer is there, its listener is open, requests without a token
// pass, and tokens are refused. Then good tokens are accepted and bad ones refused, also
// while the issuer is away. New keys count once Envoy has fetched them: after a change of
// the policy at once, else after five minutes.
func TestProxiesFetchKeys(t *testing.T) {
	issuerPort, issuerBackend, service, backend := port(t), port(t), port(t), port(t)
	documents := func(audience string) string {
		return fmt.Sprintf(tokens, issuerPort, issuerBackend, service, backend, audience)
	}
	m := start(t, documents(""), nil)
	old, next := newSigner(t, "old"), newSigner(t, "next")
	var keys atomic.Pointer[signer]
	keys.Store(old)
	var unproven atomic.Int32 // fetches without a certificate
	serve(t, issuerBackend, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/keys" || !strings.Contains(r.Header.Get("x-forwarded-client-cert"), "/ns/cart/sa/cart") {
			unproven.Add(1)
			w.WriteHeader(http.StatusForbidden)
			return
		}
		_, _ = w.Write(keys.Load().set()) // Envoy would fetch again
	})
	serve(t, backend, func(http.ResponseWriter, *http.Request) {})
	cart := m.workload("cart", "127.0.0.3", m.xds, nil)
	m.until("cart is ready, without its issuer", time.Minute, cart.ready)
	ask := func(path string, tokens ...string) error {
		return request(t, "http://"+at("127.0.0.3", backend)+path, tokens...)
	}
	is := func(what string, status int, path string, tokens ...string) {
		t.Helper()
		err := ask(path, tokens...)
		if status == http.StatusOK && err != nil || status != http.StatusOK && (err == nil || !strings.HasPrefix(err.Error(), fmt.Sprint(status))) {
			t.Errorf("%s: %v, want %d", what, err, status)
		}
	}
	m.until("a request without a token", time.Minute, func() error { return ask("/") })
	is("a token while the keys were never fetched", 401, "/", old.token(t))
	is("two tokens while the keys were never fetched", 401, "/", old.token(t), old.token(t))
	is("no token still", 200, "/")

	issuer := m.workload("issuer", "127.0.0.4", m.xds, nil)
	m.until("issuer is ready", time.Minute, issuer.ready)
	m.until("a good token", time.Minute, func() error { return ask("/", old.token(t)) })
	is("no token", 200, "/")
	is("no token where one is required", 403, "/private")
	is("a good token where one is required", 200, "/private", old.token(t))
	is("a token of another key", 401, "/", next.token(t))
	is("garbage", 401, "/", "garbage")
	if n := unproven.Load(); n > 0 {
		t.Errorf("the issuer was asked %d times by an unproven caller", n)
	}
	if err := get("http://"+at("127.0.0.4", issuerBackend)+"/keys", "issuer.mesh"); err == nil {
		t.Error("the issuer answers plaintext")
	}

	keys.Store(next)
	is("a new key before it is fetched", 401, "/", next.token(t))
	if *untilFetched {
		m.until("the new key, after five minutes", 6*time.Minute, func() error { return ask("/", next.token(t)) })
	} else {
		certtest.WriteFile(t, m.config, "mesh.yaml", []byte(documents(", other")))
		m.until("the new key, after a change of the policy", time.Minute, func() error { return ask("/", next.token(t)) })
	}
	is("a key that the issuer has removed", 401, "/", old.token(t))

	issuer.stop()
	is("a good token while the issuer is away", 200, "/", next.token(t))
	is("a token of another key while the issuer is away", 401, "/", old.token(t))
}
