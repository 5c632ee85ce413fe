package jwt

import (
	"encoding/json"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	"github.com/go-jose/go-jose/v4"

	"meshlog.dev/services/mesh/jwks"
)

// nobody is a set with a key whose private part nobody ever had: its x is the SHA-256 of
// "meshlog: a key that nobody has 0". So tokens are refused until keys are fetched. Envoy
// would refuse a filter with an empty set (S26).
const nobody = `{"keys":[{"alg":"ES256","crv":"P-256","kid":"nobody","kty":"EC",` +
	`"x":"-vqVEaBH2ZXL9xUZhpbA-reBJpJarmanI0kJx-V3LFo","y":"oKvnpGLAOSZwFoaV0AHbG6vtAvvHCOH8ywsdhtJNv7I"}]}`

// inline returns a key set as the filter holds it: public members only, and nobody's key
// if it has none that Envoy takes.
func inline(set string) *jwtv3.JwtProvider_LocalJwks {
	public, err := jwks.Public([]byte(set))
	if err != nil || !usable(public) {
		public = nobody
	}
	return &jwtv3.JwtProvider_LocalJwks{LocalJwks: &corev3.DataSource{
		Specifier: &corev3.DataSource_InlineString{InlineString: public},
	}}
}

// usable reports whether a set has a key that can be one. Envoy leaves out others, and
// refuses a set without any.
func usable(set string) bool {
	var of struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if json.Unmarshal([]byte(set), &of) != nil {
		return false
	}
	return slices.ContainsFunc(of.Keys, func(raw json.RawMessage) bool {
		var k jose.JSONWebKey
		return k.UnmarshalJSON(raw) == nil && k.Valid() && k.IsPublic()
	})
}
