package jwks

import (
	"strings"
	"testing"
)

// POL-12: the log has public members, sorted; a private key is refused and not quoted.
func TestPublic(t *testing.T) {
	const rsa = `{"e":"AQAB","kid":"a&b","kty":"RSA","n":"xyz"}`
	for name, c := range map[string]struct{ set, want, err string }{
		"as it is":           {set: `{"keys":[` + rsa + `]}`, want: `{"keys":[` + rsa + `]}`},
		"sorted":             {set: "{\"keys\": [ {\"n\": \"xyz\", \"kty\": \"RSA\", \"kid\": \"a&b\",\n \"e\": \"AQAB\"} ]}", want: `{"keys":[` + rsa + `]}`},
		"unknown members":    {set: `{"issuer":"x","keys":[{"kty":"RSA","e":"AQAB","n":"xyz","kid":"a&b","issuer":{"secret":"s3cr3t"}}]}`, want: `{"keys":[` + rsa + `]}`},
		"other types":        {set: `{"keys":[{"kty":"EC","crv":"P-256","x":"1","y":"2","key_ops":["verify"]},{"kty":"OKP","crv":"Ed25519","x":"1"}]}`, want: `{"keys":[{"crv":"P-256","key_ops":["verify"],"kty":"EC","x":"1","y":"2"},{"crv":"Ed25519","kty":"OKP","x":"1"}]}`},
		"an unknown type":    {set: `{"keys":[{"kty":"NEW","z":"1"},` + rsa + `]}`, want: `{"keys":[` + rsa + `]}`},
		"a private RSA key":  {set: `{"keys":[` + rsa + `,{"kty":"RSA","e":"AQAB","n":"xyz","d":"s3cr3t"}]}`, err: "key 2 has a private member"},
		"of an unknown type": {set: `{"keys":[{"kty":"NEW","d":"s3cr3t"}]}`, err: "key 1 has a private member"},
		"a symmetric key":    {set: `{"keys":[{"kty":"oct","k":"s3cr3t"}]}`, err: "key 1 has a private member"},
		"symmetric, no k":    {set: `{"keys":[{"kty":"oct"}]}`, err: "key 1 is symmetric"},
		"a member is a list": {set: `{"keys":[{"kty":"RSA","e":["s3cr3t"],"n":"xyz"}]}`, err: `key 1 has a member "e" of another type`},
		"a missing member":   {set: `{"keys":[{"kty":"EC","crv":"P-256","x":"1"}]}`, err: `key 1 lacks the member "y"`},
		"no keys":            {set: `{"keys":[]}`, err: "holds no public key"},
		"no set":             {set: `s3cr3t`, err: "is no JSON Web Key Set"},
		"too large":          {set: strings.Repeat(" ", MaxSize+1), err: "more than 262144"},
	} {
		got, err := Public([]byte(c.set))
		if got != c.want || (err != nil) != (c.err != "") || err != nil && !strings.HasPrefix(err.Error(), c.err) && !strings.Contains(err.Error(), "more than") {
			t.Errorf("%s: %s, %v; want %s, %s", name, got, err, c.want, c.err)
		}
		if strings.Contains(got, "s3cr3t") || err != nil && strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%s: repeats a secret: %s, %v", name, got, err)
		}
		if again, _ := Public([]byte(got)); again != got {
			t.Errorf("%s: changes again to %s", name, again)
		}
	}
}
