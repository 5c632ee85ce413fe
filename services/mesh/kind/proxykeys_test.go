package kind_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kind"
)

// POL-13: the annotation has one value. With it a rule needs a URL that names a service, and
// its timeout counts; plain http is as good as https.
func TestProxyKeys(t *testing.T) {
	k, _ := kind.ByName("RequestAuthentication")
	for _, test := range []struct{ annotation, rule, want string }{
		{"envoy", `{"issuer": "i", "jwksUri": "http://issuer.auth:8080/keys", "timeout": "2s"}`, ""},
		{"envoy", `{"issuer": "i", "jwksUri": "https://issuer.example/keys"}`, ""},
		{"Envoy", `{"issuer": "i", "jwksUri": "http://issuer.auth/keys"}`, "metadata.annotations: the value of meshlog.dev/jwks is not envoy"},
		{"", `{"issuer": "i", "jwksUri": "http://issuer.auth/keys"}`, "metadata.annotations: the value of meshlog.dev/jwks is not envoy"},
		{"envoy", `{"issuer": "https://i.example"}`, "spec.jwtRules[0].jwksUri: is missing: proxies read no discovery documents"},
		{"envoy", `{"issuer": "i", "jwks": "{\"keys\":[]}", "jwksUri": "http://issuer.auth/keys"}`, "spec.jwtRules[0].jwks: is given, so no proxy can fetch the keys"},
		{"envoy", `{"issuer": "i", "jwksUri": "http://user@issuer.auth/keys"}`, "spec.jwtRules[0].jwksUri: is not the URL of a key set"},
		{"envoy", `{"issuer": "i", "jwksUri": "ftp://issuer.auth/keys"}`, "spec.jwtRules[0].jwksUri: is not the URL of a key set"},
		{"envoy", `{"issuer": "i", "jwksUri": "http://issuer.auth:0/keys"}`, "spec.jwtRules[0].jwksUri: is not the URL of a key set"},
		{"envoy", `{"issuer": "i", "jwksUri": "http://issuer.auth/keys", "timeout": "0s"}`, "spec.jwtRules[0].timeout: 0s is too short"},
		{"envoy", `{"jwksUri": "http://issuer.auth/keys"}`, "spec.jwtRules[0].issuer: is missing"},
	} {
		m, err := k.DecodeJSON([]byte(`{"selector": {"matchLabels": {"app": "a"}}, "jwtRules": [` + test.rule + `]}`))
		if err != nil {
			t.Fatal(err)
		}
		if m, err = k.Annotated(m, map[string]string{kind.KeysAnnotation: test.annotation}); err != nil {
			t.Fatal(err)
		}
		b, err := k.Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		of := k.TypeOf(m)
		if m, err = k.Decode(of, b); err != nil {
			t.Fatal(err)
		}
		if _, byProxies, ok := kind.RequestAuthentication(m); !ok || !byProxies {
			t.Errorf("%s is read as %T", test.rule, m)
		}
		if got := problems(k.Validate("n", m)); (test.want == "") != (got == "") || !strings.HasPrefix(got, test.want) {
			t.Errorf("%q, %s: %q, want %q", test.annotation, test.rule, got, test.want)
		}
		closed, ok := k.Closed(ident.Value{Type: of, Bytes: b})
		if c := new(registryv1.Closed); !ok || proto.Unmarshal(closed.Bytes, c) != nil || c.GetMatchLabels()["app"] != "a" {
			t.Errorf("%s, never good: closes %v", test.rule, c)
		}
	}
	other, _ := kind.ByName("AuthorizationPolicy")
	if _, err := other.Decode(ident.ProxyKeys, nil); err == nil {
		t.Error("an AuthorizationPolicy has keys")
	}
}
