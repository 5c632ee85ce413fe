package authn_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"google.golang.org/grpc/codes"

	"meshlog.dev/services/ca/authn"
	"meshlog.dev/services/ca/jointoken"
)

// issuer is an OIDC issuer that listens on loopback.
type issuer struct {
	t       *testing.T
	url     string
	rsa     *rsa.PrivateKey
	ec      *ecdsa.PrivateKey
	jwksURL string
	client  http.RoundTripper
	asked   atomic.Int64
	away    atomic.Bool
	padding int // bytes that the key set has besides
}

func startIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{t: t}
	var err error
	if i.rsa, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		t.Fatal(err)
	}
	if i.ec, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	answer := func(w http.ResponseWriter, v any) {
		i.asked.Add(1)
		if i.away.Load() {
			http.Error(w, "away", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(v); err != nil && i.padding == 0 { // a body too large is not read to its end
			t.Error(err)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"issuer": i.url, "jwks_uri": i.jwksURL, "id_token_signing_alg_values_supported": []string{"none", "HS256", "RS256"}})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{
			"keys":    []jose.JSONWebKey{{Key: i.rsa.Public(), KeyID: "rsa"}, {Key: i.ec.Public(), KeyID: "ec"}},
			"padding": strings.Repeat("x", i.padding),
		})
	})
	s := httptest.NewTLSServer(mux)
	t.Cleanup(s.Close)
	i.url, i.jwksURL, i.client = s.URL, s.URL+"/keys", s.Client().Transport
	return i
}

// claims are those of a good token, with changes; a nil value removes one.
func (i *issuer) claims(changes map[string]any) map[string]any {
	c := map[string]any{
		"iss": i.url, "aud": "meshlog", "sub": "repo:shop", "exp": time.Now().Add(time.Hour).Unix(),
		"kubernetes.io": map[string]any{"namespace": "shop", "serviceaccount": map[string]any{"name": "cart"}},
	}
	maps.Copy(c, changes)
	maps.DeleteFunc(c, func(_ string, v any) bool { return v == nil })
	return c
}

func (i *issuer) sign(alg jose.SignatureAlgorithm, key any, kid string, claims map[string]any) string {
	i.t.Helper()
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: jose.JSONWebKey{Key: key, KeyID: kid}}, nil)
	if err != nil {
		i.t.Fatal(err)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		i.t.Fatal(err)
	}
	signed, err := s.Sign(payload)
	if err != nil {
		i.t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		i.t.Fatal(err)
	}
	return token
}

func (i *issuer) good(changes map[string]any) string {
	return i.sign(jose.RS256, i.rsa, "rsa", i.claims(changes))
}

func (i *issuer) authenticator(change func(*authn.OIDCConfig)) *authn.OIDC {
	i.t.Helper()
	cfg := authn.OIDCConfig{
		Issuer: i.url, Audience: "meshlog", Namespace: "{/kubernetes.io/namespace}", ServiceAccount: "{/kubernetes.io/serviceaccount/name}", Transport: i.client,
	}
	if change != nil {
		change(&cfg)
	}
	o, err := authn.NewOIDC(domain, cfg)
	if err != nil {
		i.t.Fatal(err)
	}
	return o
}

// CA-5: a token of the issuer, for this audience.
func TestOIDC(t *testing.T) {
	i := startIssuer(t)
	o := i.authenticator(nil)
	for name, token := range map[string]string{
		"RS256":             i.good(nil),
		"ES256":             i.sign(jose.ES256, i.ec, "ec", i.claims(nil)),
		"no kid":            i.sign(jose.RS256, i.rsa, "", i.claims(nil)),
		"several audiences": i.good(map[string]any{"aud": []string{"x", "meshlog"}}),
	} {
		p, err := authenticate(t, o, token)
		if err != nil || p.ID != cart || p.Authenticator != "oidc" || p.Facts["issuer"] != i.url || p.Facts["subject"] != "repo:shop" {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
	if n := i.asked.Load(); n > 3 {
		t.Errorf("the issuer was asked %d times for four tokens", n)
	}
}

// CA-5: tokens that an attacker could make or have.
func TestOIDCAttacks(t *testing.T) {
	i := startIssuer(t)
	o := i.authenticator(nil)
	stranger, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(i.rsa.Public())
	if err != nil {
		t.Fatal(err)
	}
	part := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(b)
	}
	good := strings.Split(i.good(nil), ".")
	none := part(map[string]string{"alg": "none"}) + "." + part(i.claims(nil)) + "."
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	for name, token := range map[string]string{
		"alg none":               none,
		"HS256 with public key":  i.sign(jose.HS256, public, "rsa", i.claims(nil)),
		"algorithm not allowed":  i.sign(jose.PS256, i.rsa, "rsa", i.claims(nil)),
		"key of someone else":    i.sign(jose.RS256, stranger, "rsa", i.claims(nil)),
		"unknown kid":            i.sign(jose.RS256, stranger, "other", i.claims(nil)),
		"claims replaced":        good[0] + "." + part(i.claims(map[string]any{"sub": "repo:bank"})) + "." + good[2],
		"wrong audience":         i.good(map[string]any{"aud": "vault"}),
		"no audience":            i.good(map[string]any{"aud": nil}),
		"ended":                  i.good(map[string]any{"exp": time.Now().Add(-time.Minute).Unix()}),
		"no end":                 i.good(map[string]any{"exp": nil}),
		"not yet valid":          i.good(map[string]any{"nbf": time.Now().Add(time.Hour).Unix()}),
		"no signature":           good[0] + "." + good[1] + ".",
		"signature of the other": good[0] + "." + good[1] + "." + strings.Split(i.sign(jose.ES256, i.ec, "ec", i.claims(nil)), ".")[2],
	} {
		t.Run(name, func(t *testing.T) {
			p, err := authenticate(t, o, token)
			expectRefusal(t, p, err, codes.Unauthenticated, "the token is not valid", token)
		})
	}
	p, err := authenticate(t, o, i.good(map[string]any{"iss": "https://other.example"}))
	expectRefusal(t, p, err, codes.Unauthenticated, "takes no token of this kind", "")
	p, err = authenticate(t, o, i.good(map[string]any{"sub": strings.Repeat("x", authn.MaxToken)}))
	expectRefusal(t, p, err, codes.Unauthenticated, "at most 16384 are allowed", "")
	if n := i.asked.Load(); n > 6 {
		t.Errorf("the issuer was asked %d times: anyone can make it busy", n)
	}
}

// CA-5: names from claims are names, or none.
func TestOIDCClaims(t *testing.T) {
	i := startIssuer(t)
	inNamespace := func(v any) map[string]any {
		return map[string]any{"kubernetes.io": map[string]any{"namespace": v, "serviceaccount": map[string]any{"name": "cart"}}}
	}
	o := i.authenticator(nil)
	for want, changes := range map[string]map[string]any{
		`name no workload: "shop/sa/admin"`:                  inNamespace("shop/sa/admin"),
		`name no workload: "Shop"`:                           inNamespace("Shop"),
		"no claim /kubernetes.io/namespace that is a text":   inNamespace(7),
		"names no namespace: the token has no claim /kubern": {"kubernetes.io": nil},
		"no claim /kubernetes.io/namespace":                  {"kubernetes.io": "shop"},
	} {
		p, err := authenticate(t, o, i.good(changes))
		expectRefusal(t, p, err, codes.PermissionDenied, want, "")
	}
	// One name, for tokens with a claim.
	ci := i.authenticator(func(c *authn.OIDCConfig) {
		c.Namespace, c.ServiceAccount, c.Claims = "ci", "deploy-{repository}", map[string]string{"owner": "shop"}
	})
	p, err := authenticate(t, ci, i.good(map[string]any{"owner": "shop", "repository": "web"}))
	if err != nil || p.ID.Namespace != "ci" || p.ID.ServiceAccount != "deploy-web" {
		t.Errorf("%+v, %v", p, err)
	}
	for _, changes := range []map[string]any{{"owner": "bank", "repository": "web"}, {"repository": "web"}, {"owner": []string{"shop"}, "repository": "web"}} {
		p, err := authenticate(t, ci, i.good(changes))
		expectRefusal(t, p, err, codes.PermissionDenied, "claim owner is not the one that this CA requires", "")
	}
}

// CA-5: an issuer that is away is asked again; one that answers wrongly is not used.
func TestOIDCIssuer(t *testing.T) {
	t.Run("away", func(t *testing.T) {
		i := startIssuer(t)
		o := i.authenticator(nil)
		i.away.Store(true)
		p, err := authenticate(t, o, i.good(nil))
		expectRefusal(t, p, err, codes.Unavailable, "cannot be asked for its keys now", "")
		i.away.Store(false)
		if p, err := authenticate(t, o, i.good(nil)); err != nil || p.ID != cart {
			t.Errorf("%+v, %v", p, err)
		}
	})
	for want, spoil := range map[string]func(*issuer){
		"is no https URL":                 func(i *issuer) { i.jwksURL = strings.Replace(i.jwksURL, "https", "http", 1) },
		"http: request body too large":    func(i *issuer) { i.padding = 2 << 20 },
		"the token is not valid: it may ": func(i *issuer) { i.jwksURL = "https://127.0.0.1:1/" },
	} {
		t.Run(want, func(t *testing.T) {
			i := startIssuer(t)
			spoil(i)
			p, err := authenticate(t, i.authenticator(nil), i.good(nil))
			expectRefusal(t, p, err, codes.Unauthenticated, want, "")
		})
	}
}

func TestOIDCConfig(t *testing.T) {
	good := authn.OIDCConfig{Issuer: "https://issuer.example", Audience: "meshlog", Namespace: "ci", ServiceAccount: "{sub}"}
	for want, change := range map[string]func(*authn.OIDCConfig){
		"":                              func(*authn.OIDCConfig) {},
		"write an https URL":            func(c *authn.OIDCConfig) { c.Issuer = "http://issuer.example" },
		"name the audience":             func(c *authn.OIDCConfig) { c.Audience = "" },
		`algorithm "none" is none of`:   func(c *authn.OIDCConfig) { c.Algorithms = []string{"none"} },
		`algorithm "HS256" is none of`:  func(c *authn.OIDCConfig) { c.Algorithms = []string{"RS256", "HS256"} },
		"write at most one claim":       func(c *authn.OIDCConfig) { c.Namespace = "{a}-{b}" },
		"namespace: \"\" is no templat": func(c *authn.OIDCConfig) { c.Namespace = "" },
		"service account: \"{sub\" is":  func(c *authn.OIDCConfig) { c.ServiceAccount = "{sub" },
		"would get one identity":        func(c *authn.OIDCConfig) { c.ServiceAccount = "deploy" },
	} {
		c := good
		change(&c)
		if _, err := authn.NewOIDC(domain, c); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
}

// An issuer's tokens go to its authenticator, whatever follows in the set.
func TestSet(t *testing.T) {
	i := startIssuer(t)
	var asked bytes.Buffer
	set := authn.Set{authn.NewJoin(domain, new(jointoken.Memory)), i.authenticator(nil), probe{&asked}}
	if p, err := set.Authenticate(t.Context(), authn.Credentials{Token: i.good(nil)}); err != nil || p.Authenticator != "oidc" {
		t.Errorf("%+v, %v", p, err)
	}
	p, err := set.Authenticate(t.Context(), authn.Credentials{Token: i.good(map[string]any{"exp": 1})})
	expectRefusal(t, p, err, codes.Unauthenticated, "the token is not valid", "")
	if asked.Len() > 0 {
		t.Errorf("a token that its authenticator refused went on to %s", &asked)
	}
	for want, c := range map[string]authn.Credentials{
		"takes no token of this kind": {Token: "x"},
		"takes no certificates":       {Certificates: []*x509.Certificate{{}}},
		"neither a token nor":         {},
	} {
		p, err := set.Authenticate(t.Context(), c)
		expectRefusal(t, p, err, codes.Unauthenticated, want, "")
	}
}
