package spiffe_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"strings"
	"testing"
	"time"

	"meshlog.dev/services/mesh/spiffe"
)

// CA-1: an identity has exactly these segments.
func TestParse(t *testing.T) {
	for _, want := range []spiffe.ID{
		{"cluster.local", "shop", "cart"},
		{"td_1.example", "a-0", "my.account-1"},
		{strings.Repeat("t", 255), strings.Repeat("n", 63), strings.Repeat("s", 253)},
	} {
		got, err := spiffe.Parse(want.String())
		if err != nil || got != want {
			t.Errorf("%s is read as %+v, %v", want, got, err)
		}
	}
}

// CA-1: anything else is no identity.
func TestNoIdentity(t *testing.T) {
	for _, s := range []string{
		"", "spiffe://", "spiffe:///ns/a/sa/b", "cluster.local/ns/a/sa/b", "https://td/ns/a/sa/b", "SPIFFE://td/ns/a/sa/b",
		"spiffe://td", "spiffe://td/", "spiffe://td/ns/a", "spiffe://td/ns/a/sa", "spiffe://td/ns/a/sa/", "spiffe://td/ns/a/sa/b/",
		"spiffe://td/ns/a/sa/b/c", "spiffe://td//ns/a/sa/b", "spiffe://td/ns//sa/b", "spiffe://td/sa/b/ns/a", "spiffe://td/NS/a/sa/b",
		"spiffe://td/ns/evil/sa/x/ns/a/sa/b", "spiffe://td/ns/../sa/b", "spiffe://td/ns/./sa/b", "spiffe://td/x/../ns/a/sa/b",
		"spiffe://td/ns/A/sa/b", "spiffe://td/ns/a/sa/B", "spiffe://td/ns/a.b/sa/c", "spiffe://td/ns/a_b/sa/c", "spiffe://td/ns/-a/sa/b", "spiffe://td/ns/a/sa/b-",
		"spiffe://td/ns/a/sa/b..c", "spiffe://td/ns/%61/sa/b", "spiffe://td/ns/a%2fsa%2fb", "spiffe://td/ns/a/sa/b?", "spiffe://td/ns/a/sa/b?x=y", "spiffe://td/ns/a/sa/b#", "spiffe://td/ns/a/sa/b#c",
		"spiffe://TD/ns/a/sa/b", "spiffe://td:80/ns/a/sa/b", "spiffe://u@td/ns/a/sa/b", "spiffe://t d/ns/a/sa/b", "spiffe://td/ns/a/sa/b ", " spiffe://td/ns/a/sa/b",
		"spiffe://td/ns/a/sa/b\n", "spiffe://td/ns/a/sa/b\x00", "spiffe://td/ns/*/sa/*", "spiffe://td/ns/ä/sa/b",
		"spiffe://" + strings.Repeat("t", 256) + "/ns/a/sa/b",
		"spiffe://td/ns/" + strings.Repeat("n", 64) + "/sa/b",
		"spiffe://td/ns/a/sa/" + strings.Repeat("s", 254),
		"spiffe://td/" + strings.Repeat("x", 3000),
	} {
		if id, err := spiffe.Parse(s); err == nil || id != (spiffe.ID{}) {
			t.Errorf("%q is read as %+v, %v", s, id, err)
		}
	}
	for _, td := range []string{"", "spiffe://td", "spiffe://td/a", "TD", "t/d", "td:1", "*"} {
		if err := spiffe.CheckTrustDomain(td); err == nil {
			t.Errorf("%q counts as a trust domain", td)
		}
	}
}

// certificate returns a certificate with these URIs, byte by byte.
func certificate(t *testing.T, change func(*x509.Certificate), uris ...string) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	names := []asn1.RawValue{{Class: asn1.ClassContextSpecific, Tag: 2, Bytes: []byte("cart.shop.svc")}}
	for _, u := range uris {
		names = append(names, asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: 6, Bytes: []byte(u)})
	}
	san, err := asn1.Marshal(names)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "spiffe://td/ns/cn/sa/cn"}, NotAfter: time.Now().Add(time.Hour),
		ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Value: san}},
	}
	if change != nil {
		change(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// CA-1: the only URI of a certificate is its identity; names in DNS or the subject,
// which Envoy's principal_name would take (S27), are none.
func TestFromCertificate(t *testing.T) {
	const cart = "spiffe://td/ns/shop/sa/cart"
	id, err := spiffe.FromCertificate(certificate(t, nil, cart))
	if want := (spiffe.ID{TrustDomain: "td", Namespace: "shop", ServiceAccount: "cart"}); err != nil || id != want {
		t.Errorf("the identity is %+v, %v", id, err)
	}
	ca := func(c *x509.Certificate) { c.IsCA, c.BasicConstraintsValid = true, true }
	signs := func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign }
	for name, c := range map[string]*x509.Certificate{
		"no URI":                certificate(t, nil),
		"two URIs":              certificate(t, nil, cart, "spiffe://td2/ns/shop/sa/cart"),
		"the same URI twice":    certificate(t, nil, cart, cart),
		"another URI first":     certificate(t, nil, "https://shop.example/", cart),
		"scheme in upper case":  certificate(t, nil, "SPIFFE://td/ns/shop/sa/cart"),
		"empty fragment":        certificate(t, nil, cart+"#"),
		"escaped":               certificate(t, nil, "spiffe://td/ns/%73hop/sa/cart"),
		"CA bit":                certificate(t, ca, cart),
		"key usage of a CA":     certificate(t, signs, cart),
		"no alternative names":  certificate(t, func(c *x509.Certificate) { c.ExtraExtensions = nil }),
		"of another trust form": certificate(t, nil, "spiffe://td/spire/agent/x509pop/1"),
	} {
		if id, err := spiffe.FromCertificate(c); err == nil || id != (spiffe.ID{}) {
			t.Errorf("%s: the identity is %+v, %v", name, id, err)
		}
	}
}

// FuzzParse checks that an identity has one spelling only.
func FuzzParse(f *testing.F) {
	f.Add("spiffe://td/ns/a/sa/b")
	f.Add("spiffe://td/ns/a/sa/b/")
	f.Fuzz(func(t *testing.T, s string) {
		if id, err := spiffe.Parse(s); err == nil && id.String() != s {
			t.Errorf("%q and %q are one identity", s, id)
		}
	})
}
