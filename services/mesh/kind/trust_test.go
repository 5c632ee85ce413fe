package kind_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"meshlog.dev/deploy/testkit/certtest"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/problem"
)

// crl returns a CA and a CRL of it, in PEM.
func crl(t *testing.T) (ca, list string) {
	t.Helper()
	must := func(b []byte, err error) []byte {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCRLSign, NotAfter: time.Now().Add(time.Hour),
	}
	der := must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))
	issuer, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	revoked := must(x509.CreateRevocationList(rand.Reader, &x509.RevocationList{Number: big.NewInt(1), NextUpdate: time.Now().Add(time.Hour)}, issuer, key))
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: revoked}))
}

// CA-9, CA-10: a TrustBundle has roots, one of them active, and nothing but certificates.
func TestTrustBundle(t *testing.T) {
	one, two := certtest.NewCA("one"), certtest.NewCA("two")
	revoking, list := crl(t)
	pair := one.Server("web", time.Now().Add(time.Hour))
	root := func(pem string, state registryv1.RootState) *registryv1.Root {
		return &registryv1.Root{Certificate: pem, State: state}
	}
	const announced, active, retiring = registryv1.RootState_ROOT_STATE_ANNOUNCED, registryv1.RootState_ROOT_STATE_ACTIVE, registryv1.RootState_ROOT_STATE_RETIRING
	a, b := string(one.PEM()), string(two.PEM())
	bundle := func(domain, crl string, roots ...*registryv1.Root) proto.Message {
		return &registryv1.TrustBundle{TrustDomain: domain, Roots: roots, Crl: crl}
	}
	for name, c := range map[string]struct {
		m    proto.Message
		want string
	}{
		"good":                  {bundle("cluster.local", "", root(a, active)), ""},
		"rotated":               {bundle("td_1", "", root(a, retiring), root(b, active), root(revoking, announced)), ""},
		"a CRL":                 {bundle("td", list, root(revoking, active)), ""},
		"no domain":             {bundle("", "", root(a, active)), `trust_domain: "" is not a trust domain`},
		"a URI":                 {bundle("spiffe://td", "", root(a, active)), `trust_domain: "spiffe://td" is not a trust domain`},
		"no roots":              {bundle("td", ""), "roots: has no active root"},
		"none active":           {bundle("td", "", root(a, announced)), "roots: has no active root"},
		"no state":              {bundle("td", "", root(a, active), root(b, 0)), "roots[1].state: is not announced, active or retiring"},
		"a state of the future": {bundle("td", "", root(a, active), root(b, 9)), "roots[1].state: is not announced, active or retiring"},
		"empty":                 {bundle("td", "", root("", active)), "roots[0].certificate: is empty"},
		"twice":                 {bundle("td", "", root(a, active), root(a, retiring)), "roots[1].certificate: is there twice"},
		"two in one":            {bundle("td", "", root(a+b, active)), "roots[0].certificate: holds more than one certificate"},
		"not a CA":              {bundle("td", "", root(string(pair.Cert), active)), "roots[0].certificate: is not the certificate of a CA"},
		"a key":                 {bundle("td", "", root(a+string(pair.Key), active)), "roots[0].certificate: holds a block of PEM that is no CERTIFICATE"},
		"text":                  {bundle("td", "", root("s3cr3t\n"+a, active)), "roots[0].certificate: holds more than blocks of PEM"},
		"a CRL of another root": {bundle("td", list, root(a, active)), "crl: "},
		"a root without a CRL":  {bundle("td", list, root(revoking, active), root(a, announced)), `crl: has no CRL of the CA "CN=one"`},
		"no CRL in it":          {bundle("td", "s3cr3t", root(a, active)), "crl: holds no block X509 CRL of PEM"},
		"large":                 {bundle("td", strings.Repeat("x", 256<<10), root(a, active)), "roots: has more than 256 KB of certificates"},
	} {
		checkProblem(t, "TrustBundle", name, c.m, c.want)
	}
}

// POL-12: Jwks has public keys of an https URL, as the log has them.
func TestJwks(t *testing.T) {
	const keys = `{"keys":[{"e":"AQAB","kty":"RSA","n":"xyz"}]}`
	of := func(issuer, uri, keys string) proto.Message {
		return &registryv1.Jwks{Issuer: issuer, Uri: uri, Keys: keys}
	}
	const issuer, uri = "https://issuer.example", "https://issuer.example/keys"
	for name, c := range map[string]struct {
		m    proto.Message
		want string
	}{
		"good":          {of(issuer, uri, keys), ""},
		"a plain name":  {of("issuer", uri, keys), ""},
		"no issuer":     {of("", uri, keys), "issuer: is empty"},
		"two lines":     {of("a\nb", uri, keys), "issuer: "},
		"plaintext":     {of(issuer, "http://issuer.example/keys", keys), "uri: is not the URL of a key set"},
		"a password":    {of(issuer, "https://u:s3cr3t@issuer.example/keys", keys), "uri: is not the URL of a key set"},
		"no URL":        {of(issuer, "", keys), "uri: is not the URL of a key set"},
		"no keys":       {of(issuer, uri, `{"keys":[]}`), "keys: holds no public key"},
		"a private key": {of(issuer, uri, `{"keys":[{"d":"s3cr3t","e":"AQAB","kty":"RSA","n":"xyz"}]}`), "keys: key 1 has a private member"},
		"not sorted":    {of(issuer, uri, `{"keys":[{"kty":"RSA","e":"AQAB","n":"xyz"}]}`), "keys: is not as the log has key sets"},
		"spaces":        {of(issuer, uri, keys+"\n"), "keys: is not as the log has key sets"},
		"other members": {of(issuer, uri, `{"keys":[{"e":"AQAB","kty":"RSA","n":"xyz","password":"s3cr3t"}]}`), "keys: is not as the log has key sets"},
	} {
		checkProblem(t, "Jwks", name, c.m, c.want)
	}
}

// checkProblem checks the first problem of an object, which has no secret in it.
func checkProblem(t *testing.T, kind, name string, m proto.Message, want string) {
	t.Helper()
	got := ""
	for i, d := range mustKind(t, kind).Validate("", m) {
		if i == 0 {
			got = d.Error()
		}
		if text := d.Error() + d.Advice; strings.Contains(text, "s3cr3t") || strings.Contains(text, "MIG") || d.Severity != problem.Error {
			t.Errorf("%s: %+v", name, d)
		}
	}
	if !strings.HasPrefix(got, want) || (got == "") != (want == "") {
		t.Errorf("%s: got %q, want %q", name, got, want)
	}
}
