package jwt_test

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"io"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/go-jose/go-jose/v4"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"sigs.k8s.io/yaml"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/re2"
	"meshlog.dev/services/mesh/simulate"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/mesh/xds/authz"
	"meshlog.dev/services/mesh/xds/jwt"
	"meshlog.dev/services/suite/envoytest"
)

const (
	issuer  = "https://a.example"
	another = "https://b.example"
	unknown = "https://never.example" // whose keys have never been fetched
)

// issuers have their keys.
type issuers struct {
	rsa     *rsa.PrivateKey // of issuer
	ec      *ecdsa.PrivateKey
	another *ecdsa.PrivateKey
	rogue   *rsa.PrivateKey // whose public part is in no set
}

func newIssuers(t *testing.T) issuers {
	t.Helper()
	key := func() *rsa.PrivateKey {
		k, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	curve := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	return issuers{key(), curve(), curve(), key()}
}

// keys returns the sets that have been fetched.
func (i issuers) keys(name, _ string) string {
	var set jose.JSONWebKeySet
	switch name {
	case issuer:
		set.Keys = []jose.JSONWebKey{
			{Key: &i.rsa.PublicKey, KeyID: "r", Algorithm: "RS256", Use: "sig"},
			{Key: &i.ec.PublicKey, KeyID: "e", Algorithm: "ES256", Use: "sig"},
		}
	case another:
		set.Keys = []jose.JSONWebKey{{Key: &i.another.PublicKey, KeyID: "b", Algorithm: "ES256"}}
	default:
		return ""
	}
	b, err := json.Marshal(set)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// token signs claims. It changes those of a good token.
func token(t *testing.T, key any, alg jose.SignatureAlgorithm, kid string, change map[string]any) string {
	t.Helper()
	claims := map[string]any{"iss": issuer, "sub": "alice", "aud": "shop", "exp": time.Now().Add(time.Hour).Unix(), "groups": []string{"dev", "ops"}, "scope": "read write"}
	maps.Copy(claims, change)
	maps.DeleteFunc(claims, func(_ string, v any) bool { return v == nil })
	text, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: jose.JSONWebKey{Key: key, KeyID: kid}}, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(text)
	if err != nil {
		t.Fatal(err)
	}
	out, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// unsigned returns a token with the algorithm none.
func unsigned(claims string) string {
	b := base64.RawURLEncoding
	return b.EncodeToString([]byte(`{"alg":"none","typ":"JWT"}`)) + "." + b.EncodeToString([]byte(claims)) + "."
}

// A case is a set of policies, and requests with the status that each gets.
type attack struct {
	name     string
	policies string
	lax      bool // requireExpiration: false
	requests [][2]string
}

// A real Envoy refuses the tokens of attackers, and the rules of AuthorizationPolicies
// see what good ones say. The simulation comes to the same verdict (POL-16).
func TestTokens(t *testing.T) {
	i := newIssuers(t)
	good := token(t, i.rsa, jose.RS256, "r", nil)
	with := func(change map[string]any) string { return token(t, i.rsa, jose.RS256, "r", change) }
	public, err := x509.MarshalPKIXPublicKey(&i.rsa.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	ago := func(d time.Duration) map[string]any { return map[string]any{"exp": time.Now().Add(-d).Unix()} }
	const auth = "GET /|Authorization: Bearer "
	other := token(t, i.another, jose.ES256, "b", map[string]any{"iss": another})
	const rule = "kind: RequestAuthentication\nmetadata: {name: a, namespace: shop}\nspec: {jwtRules: [{issuer: 'https://a.example', audiences: [shop]}]}"
	const both = "kind: RequestAuthentication\nmetadata: {name: a, namespace: shop}\nspec: {jwtRules: [{issuer: 'https://b.example', fromHeaders: [{name: x-b}], fromCookies: [b]}, {issuer: 'https://a.example'}]}"
	const closedOne = "kind: RequestAuthentication\nmetadata: {name: c, namespace: shop}\nclosed: true"
	who := func(spec string) string {
		return rule + "\n---\nkind: AuthorizationPolicy\nmetadata: {name: p, namespace: shop}\nspec: " + spec
	}
	attacks := []attack{
		{"RA-4: tokens", rule, false, [][2]string{
			{"GET /", "200"}, {auth + good, "200"}, {"GET /?access_token=" + good, "200"},
			{auth + unsigned(`{"iss":"https://a.example","sub":"alice","aud":"shop","exp":9999999999}`), "401"},
			{auth + token(t, public, jose.HS256, "r", nil), "401"},
			{auth + token(t, i.rogue, jose.RS256, "r", nil), "401"},
			{auth + token(t, i.rsa, jose.RS256, "x", nil), "401"},
			{auth + token(t, i.rsa, jose.RS256, "", nil), "200"}, // the set has one RSA key that fits
			{auth + token(t, i.rogue, jose.RS256, "", nil), "401"},
			{auth + with(map[string]any{"aud": "other"}), "403"},
			{auth + with(map[string]any{"aud": []string{"other", "shop"}}), "200"},
			{auth + with(map[string]any{"aud": nil}), "403"},
			{auth + with(map[string]any{"iss": another}), "401"},
			{auth + with(map[string]any{"iss": nil}), "401"},
			{auth + with(map[string]any{"nbf": time.Now().Add(time.Hour).Unix()}), "401"},
			{auth + with(ago(30*time.Second)), "200"},
			{auth + with(ago(90*time.Second)), "401"},
			{auth + with(map[string]any{"exp": nil}), "401"},
			{auth + good + "x", "401"}, {auth + "garbage", "401"},
			{"GET /|Authorization: bearer " + good, "200"}, // no token, as far as Envoy knows
			{"GET /?access_token=" + good + "|Authorization: Bearer " + token(t, i.rogue, jose.RS256, "r", nil), "401"},
			{"GET /?access_token=" + token(t, i.rogue, jose.RS256, "r", nil) + "|Authorization: Bearer " + good, "401"},
			{auth + good + "&x", "401"}, {"GET /|Authorization: x Bearer  " + good, "200"},
			{"GET /?access_token=" + good + "|Authorization: Bearer " + other, "401"},
			{"GET /|x-b: " + good, "200"}, {"GET /|Cookie: access_token=garbage", "200"}, {"GET /?access_token=&x=1", "401"},
			{auth + token(t, i.another, jose.ES256, "r", nil), "401"}, {auth + token(t, i.another, jose.ES256, "b", map[string]any{"aud": "other"}), "403"},
			{auth + with(map[string]any{"aud": "other", "exp": time.Now().Add(-time.Hour).Unix()}), "401"},
			{auth + good + "|Authorization: Bearer " + good, "401"}, // both lines are one text for Envoy
			{"OPTIONS /|Origin: http://x.example|Access-Control-Request-Method: GET|Authorization: Bearer garbage", "200"},
		}},
		{"POL-11: tokens without an end", rule, true, [][2]string{{auth + with(map[string]any{"exp": nil}), "200"}}},
		{"RA-1: two issuers", both, false, [][2]string{
			{"GET /", "200"}, {auth + good, "200"}, {"GET /|x-b: " + other, "200"}, {"GET /|Cookie: b=" + other, "200"},
			{auth + other, "401"}, {"GET /|x-b: " + good, "401"}, {auth + good + "|x-b: " + other, "200"},
			{auth + "garbage", "401"}, {"GET /|x-b: garbage", "401"}, {auth + other + "|x-b: " + good, "401"},
			{"GET /|x-b: " + other + "|x-b: " + other, "200"}, {"GET /|x-b: " + other + "|x-b: garbage", "401"},
			{"GET /|Cookie: b=" + other + "; b=garbage", "200"}, {"GET /|x-b: " + other + "|Cookie: b=garbage", "401"},
			{"GET /|Cookie: c=1|Cookie: b=\"" + other + "\"", "200"}, {auth + good + "|x-b: garbage", "200"}, {auth + "garbage|x-b: " + other, "200"},
		}},
		{"POL-12: never fetched", "kind: RequestAuthentication\nmetadata: {name: a, namespace: shop}\nspec: {jwtRules: [{issuer: 'https://never.example'}]}", false, [][2]string{
			{"GET /", "200"}, {auth + with(map[string]any{"iss": unknown}), "401"}, {auth + token(t, i.ec, jose.ES256, "nobody", map[string]any{"iss": unknown}), "401"},
		}},
		{"POL-15: never good", closedOne, false, [][2]string{{"GET /", "200"}, {auth + good, "401"}, {"GET /?access_token=" + good, "401"}}},
		{"POL-15: never good, beside a good one", both + "\n---\n" + closedOne, false, [][2]string{
			{"GET /", "200"}, {auth + good, "401"}, {"GET /|x-b: " + other, "401"}, {"GET /|Cookie: b=" + other, "401"},
		}},
		{"AZ-4: a token is required", who("{action: DENY, rules: [{from: [{source: {notRequestPrincipals: ['*']}}]}]}"), false, [][2]string{
			{"GET /", "403"}, {auth + good, "200"}, {"GET /|Authorization: bearer " + good, "403"}, {auth + "garbage", "401"},
			{"OPTIONS /|Origin: http://x.example|Access-Control-Request-Method: GET", "403"}, // POL-11: a preflight passes the tokens' filter, not RBAC
		}},
		{"AZ-6: claims", who("{rules: [{when: [{key: 'request.auth.claims[groups]', values: [ops]}, {key: 'request.auth.claims[scope]', values: [write]}, {key: request.auth.audiences, values: [shop]}, {key: request.auth.principal, values: ['https://a.example/alice']}]}]}"), false, [][2]string{
			{auth + good, "200"}, {"GET /", "403"}, {auth + with(map[string]any{"groups": "ops"}), "200"},
			{auth + with(map[string]any{"groups": []string{"dev"}}), "403"}, {auth + with(map[string]any{"scope": "read writer"}), "403"},
			{auth + with(map[string]any{"sub": "mallory"}), "403"}, {auth + with(map[string]any{"aud": []string{"x", "shop"}}), "200"},
		}},
	}
	dir := t.TempDir()
	var listeners []*listenerv3.Listener
	sockets := make([]string, len(attacks))
	for n, a := range attacks {
		sockets[n] = filepath.Join(dir, strconv.Itoa(n))
		listeners = append(listeners, listenerOf(t, sockets[n], parse(t, a.policies), jwt.Options{Keys: i.keys, RequireExpiration: !a.lax}))
	}
	envoytest.Run(t, dir, listeners)
	for n, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			for _, r := range a.requests {
				status, body, err := ask(sockets[n], r[0])
				if err != nil || strconv.Itoa(status) != r[1] {
					t.Errorf("%.90s: %d (%s), %v; want %s", r[0], status, body, err, r[1])
				}
				if o := simulated(t, listeners[n]).Call(callOf(r[0])); o.Unknown != "" || strconv.Itoa(int(o.Status)) != r[1] {
					t.Errorf("%.90s: the simulation says %d, %s; want %s\n%s", r[0], o.Status, o.Unknown, r[1], strings.Join(o.Lines(), "\n"))
				}
			}
		})
	}
}

// simulated returns the simulation of a listener, as the one of a port.
func simulated(t *testing.T, l *listenerv3.Listener) *simulate.Proxy {
	t.Helper()
	l = proto.CloneOf(l)
	l.Address = &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: "0.0.0.0", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 80},
	}}}
	b, err := proto.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	var sets [ident.ResourceTypes]*xds.Set
	sets[ident.LDS] = &xds.Set{Resources: []*xds.Resource{{Name: l.GetName(), Pieces: xds.PiecesOf(&xds.Encoded{Value: b})}}}
	p, err := simulate.NewProxy(sets)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// callOf returns the request that ask sends, as a call now.
func callOf(request string) simulate.Call {
	parts := strings.Split(request, "|")
	c := simulate.Call{Port: 80, Host: "shop.example", Headers: map[string][]string{}, Now: time.Now()}
	c.Method, c.Path, _ = strings.Cut(parts[0], " ")
	for _, line := range parts[1:] {
		name, value, _ := strings.Cut(line, ": ")
		name = strings.ToLower(name)
		c.Headers[name] = append(c.Headers[name], value)
	}
	return c
}

// The key that nobody has is made of the text that its comment names.
func TestNobodyHasTheKey(t *testing.T) {
	f := jwt.Filter(parse(t, "kind: RequestAuthentication\nmetadata: {name: a, namespace: shop}\nspec: {jwtRules: [{issuer: a}]}"), jwt.Options{})
	var set jose.JSONWebKeySet
	if err := json.Unmarshal([]byte(f.GetProviders()["origins-0"].GetLocalJwks().GetInlineString()), &set); err != nil || len(set.Keys) != 1 {
		t.Fatalf("%v, %v", set, err)
	}
	k, ok := set.Keys[0].Key.(*ecdsa.PublicKey)
	if !ok {
		t.Fatalf("%+v is no key of a curve", set.Keys[0])
	}
	point, err := k.Bytes() // 4, X, Y
	if x := sha256.Sum256([]byte("meshlog: a key that nobody has 0")); err != nil || !bytes.Equal(point[1:33], x[:]) {
		t.Errorf("%+v: not made of that text (%v)", set.Keys[0], err)
	}
}

// ask sends a request, METHOD PATH|HEADER..., and returns its status and body.
func ask(socket, request string) (status int, body string, err error) {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = c.Close() }() // the response is read
	parts := strings.Split(request, "|")
	method, _, _ := strings.Cut(parts[0], " ")
	lines := append([]string{parts[0] + " HTTP/1.1", "Host: shop.example", "Connection: close", "Content-Length: 0"}, parts[1:]...)
	if _, err := io.WriteString(c, strings.Join(lines, "\r\n")+"\r\n\r\n"); err != nil {
		return 0, "", err
	}
	response, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = response.Body.Close() }() // it is read
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

// listenerOf returns a listener with the filters of policies. It answers 200 to what
// passes them.
func listenerOf(t *testing.T, socket string, policies []world.Object, o jwt.Options) *listenerv3.Listener {
	m := &hcmv3.HttpConnectionManager{
		StatPrefix: "http",
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
			Name: "r", VirtualHosts: []*routev3.VirtualHost{{Name: "all", Domains: []string{"*"}, Routes: []*routev3.Route{{
				Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
				Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: http.StatusOK}},
			}}}},
		}},
	}
	add := func(name string, f proto.Message) {
		m.HttpFilters = append(m.HttpFilters, &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: packed(t, f)}})
	}
	add("meshlog.authz.jwt", jwt.Filter(policies, o))
	var rules []world.Object
	for _, p := range policies {
		if p.Key.Kind == "AuthorizationPolicy" {
			rules = append(rules, p)
		}
	}
	f := authz.ForHTTP(rules, authz.Options{TrustDomains: []string{"cluster.local"}, MaxRegex: re2.Stock})
	if f.Deny != nil {
		add("meshlog.authz.deny", f.Deny)
	}
	if f.Allow != nil {
		add("meshlog.authz.allow", f.Allow)
	}
	add("cors", &corsv3.Cors{})
	add("router", &routerv3.Router{})
	l := envoytest.Listener(t, filepath.Base(socket), 0, m)
	l.Address = &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: socket}}}
	return l
}

func packed(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// parse reads policies, which have to be valid.
func parse(t *testing.T, text string) []world.Object {
	t.Helper()
	var policies []world.Object
	for document := range strings.SplitSeq(text, "\n---\n") {
		var of struct {
			Kind     string
			Metadata struct{ Name, Namespace string }
			Spec     json.RawMessage
			Closed   bool
		}
		if err := yaml.UnmarshalStrict([]byte(document), &of); err != nil {
			t.Fatal(err)
		}
		k, ok := kind.ByName(of.Kind)
		if !ok {
			t.Fatalf("there is no %s", of.Kind)
		}
		o := world.Object{Key: ident.Key{Source: "file", Instance: "default", Kind: k.Name, Namespace: of.Metadata.Namespace, Name: of.Metadata.Name}}
		if o.Message = (&registryv1.Closed{}); !of.Closed {
			m, err := k.DecodeJSON(of.Spec)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range k.Validate(of.Metadata.Namespace, m) {
				if d.Severity == problem.Error {
					t.Errorf("%s: %+v", document, d)
				}
			}
			o.Message = m
		}
		policies = append(policies, o)
	}
	return policies
}
