package signer_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"meshlog.dev/services/ca/signer"
)

// direct returns an authority that is its own root.
func direct(t *testing.T) (*authority, *signer.Authority) {
	t.Helper()
	root := newRoot(t)
	a, err := signer.New(root.key, []*x509.Certificate{root.cert}, []*x509.Certificate{root.cert}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return root, a
}

// checkLeaf checks that a certificate has what CA-7 says and nothing else.
func checkLeaf(t *testing.T, leaf *x509.Certificate, public crypto.PublicKey) {
	t.Helper()
	var oids []string
	for _, e := range leaf.Extensions {
		oids = append(oids, e.Id.String())
	}
	slices.Sort(oids)
	// Key usage, alternative names, constraints, the issuer's key, extended key usage.
	if want := []string{"2.5.29.15", "2.5.29.17", "2.5.29.19", "2.5.29.35", "2.5.29.37"}; !slices.Equal(oids, want) {
		t.Errorf("the extensions are %v, want %v", oids, want)
	}
	if len(leaf.URIs) != 1 || leaf.URIs[0].String() != cart.String() || len(leaf.DNSNames)+len(leaf.IPAddresses)+len(leaf.EmailAddresses) > 0 {
		t.Errorf("the names are %v %v %v %v, want only %s", leaf.URIs, leaf.DNSNames, leaf.IPAddresses, leaf.EmailAddresses, cart)
	}
	if len(leaf.Subject.Names) > 0 {
		t.Errorf("the subject is %s, want none", leaf.Subject)
	}
	if leaf.IsCA || !leaf.BasicConstraintsValid || leaf.KeyUsage != x509.KeyUsageDigitalSignature {
		t.Errorf("CA %v, constraints %v, key usage %b", leaf.IsCA, leaf.BasicConstraintsValid, leaf.KeyUsage)
	}
	if want := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}; !slices.Equal(leaf.ExtKeyUsage, want) || len(leaf.UnknownExtKeyUsage) > 0 {
		t.Errorf("the extended key usage is %v %v", leaf.ExtKeyUsage, leaf.UnknownExtKeyUsage)
	}
	if !leaf.PublicKey.(interface{ Equal(crypto.PublicKey) bool }).Equal(public) {
		t.Error("the key is not that of the request")
	}
	if bits := leaf.SerialNumber.BitLen(); bits < 100 || bits > 128 {
		t.Errorf("the serial number has %d bits", bits)
	}
}

func newRSA(t *testing.T, bits int) *rsa.PrivateKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newCurve(t *testing.T, c elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(c, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// CA-7: the kinds of keys of proxies, each verified by a client and a server.
func TestIssue(t *testing.T) {
	root, a := direct(t)
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]crypto.Signer{
		"P-256": newKey(t), "P-384": newCurve(t, elliptic.P384()), "RSA 2048": newRSA(t, 2048), "Ed25519": ed,
	} {
		now := time.Now()
		got, err := a.Issue(newRequest(t, key), cart, signer.DefaultTTL, now)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		checkLeaf(t, got.Leaf, key.Public())
		if from, to := now.Sub(got.Leaf.NotBefore), got.Leaf.NotAfter.Sub(now); from < 2*time.Minute || from > 2*time.Minute+time.Second || to > 24*time.Hour || to < 24*time.Hour-time.Second {
			t.Errorf("%s: valid from %s before now to %s after, want 2m and 24h", name, from, to)
		}
		// The root is last; the leaf verifies with it (CA-2).
		if len(got.Chain) != 2 || !parse(t, got.Chain[1])[0].Equal(root.cert) || !parse(t, got.Chain[0])[0].Equal(got.Leaf) {
			t.Errorf("%s: the chain is %q", name, got.Chain)
		}
		pool := x509.NewCertPool()
		pool.AddCert(root.cert)
		for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
			if _, err := got.Leaf.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{use}}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// CA-7, S27: names, constraints and usages that a request asks for have no effect.
func TestRequestedNamesHaveNoEffect(t *testing.T) {
	_, a := direct(t)
	admin, err := url.Parse("spiffe://cluster.local/ns/bank/sa/admin")
	if err != nil {
		t.Fatal(err)
	}
	extension := func(oid asn1.ObjectIdentifier, value any) pkix.Extension {
		der, err := asn1.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		return pkix.Extension{Id: oid, Critical: true, Value: der}
	}
	type constraints struct {
		IsCA    bool
		MaxPath int
	}
	for name, template := range map[string]*x509.CertificateRequest{
		"extra SANs": {URIs: []*url.URL{admin}, DNSNames: []string{admin.String(), "admin.bank.svc"}, EmailAddresses: []string{"a@b"}, IPAddresses: []net.IP{{127, 0, 0, 1}}},
		"CN":         {Subject: pkix.Name{CommonName: admin.String(), Organization: []string{"system:masters"}}},
		"CA bit": {ExtraExtensions: []pkix.Extension{
			extension(asn1.ObjectIdentifier{2, 5, 29, 19}, constraints{true, 5}),
			extension(asn1.ObjectIdentifier{2, 5, 29, 15}, asn1.BitString{Bytes: []byte{0x06}, BitLength: 8}), // certSign, cRLSign
		}},
		"unknown extension": {ExtraExtensions: []pkix.Extension{extension(asn1.ObjectIdentifier{1, 2, 3}, "x")}},
	} {
		key := newKey(t)
		r, err := signer.ParseRequest(requestPEM(t, template, key))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := a.Issue(r, cart, signer.DefaultTTL, time.Now())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Run(name, func(t *testing.T) { checkLeaf(t, got.Leaf, key.Public()) })
	}
}

// CA-7: requests that are refused.
func TestRefusedRequests(t *testing.T) {
	good := requestPEM(t, &x509.CertificateRequest{}, newKey(t))
	block, _ := pem.Decode(good)
	forged := slices.Clone(block.Bytes)
	forged[len(forged)-1] ^= 1
	encode := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	for want, request := range map[string]string{
		"is not signed with the key in it":     encode("CERTIFICATE REQUEST", forged),
		"ECDSA on P-224: use P-256 or P-384":   string(requestPEM(t, &x509.CertificateRequest{}, newCurve(t, elliptic.P224()))),
		"ECDSA on P-521: use P-256 or P-384":   string(requestPEM(t, &x509.CertificateRequest{}, newCurve(t, elliptic.P521()))),
		"RSA with 1024 bits: use 2048 to 8192": string(requestPEM(t, &x509.CertificateRequest{}, newRSA(t, 1024))),
		"bytes: at most 16384 are allowed":     string(requestPEM(t, &x509.CertificateRequest{DNSNames: slices.Repeat([]string{"shop.example"}, 2000)}, newKey(t))),
		"cannot be read":                       encode("CERTIFICATE REQUEST", block.Bytes[1:]),
		"something follows the certificate":    string(good) + string(good),
		"is not a PEM block":                   encode("PRIVATE KEY", block.Bytes),
	} {
		if r, err := signer.ParseRequest([]byte(request)); err == nil || r != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
	for _, garbage := range []string{"", "x", "-----BEGIN CERTIFICATE REQUEST-----\n-----END CERTIFICATE REQUEST-----\n"} {
		if _, err := signer.ParseRequest([]byte(garbage)); err == nil {
			t.Errorf("%q is a request", garbage)
		}
	}
}

// CA-8: at most 7 days, and never longer than the issuer or one above it.
func TestEnds(t *testing.T) {
	root, a := direct(t)
	request, now := newRequest(t, newKey(t)), time.Now()
	for _, ttl := range []time.Duration{-time.Hour, time.Second, signer.MaxTTL + time.Second} {
		if _, err := a.Issue(request, cart, ttl, now); err == nil {
			t.Errorf("a certificate for %s was issued", ttl)
		}
	}
	got, err := a.Issue(request, cart, signer.MaxTTL, now)
	if err != nil || got.Leaf.NotAfter.Sub(now) > signer.MaxTTL {
		t.Errorf("%v, %v", got, err)
	}
	// The one in the middle ends first.
	soon := now.Add(3 * time.Hour).Truncate(time.Second)
	middle := root.sign(t, "middle", soon, nil)
	own := middle.sign(t, "own", now.Add(100*time.Hour), nil)
	short, err := signer.New(own.key, []*x509.Certificate{own.cert, middle.cert, root.cert}, []*x509.Certificate{root.cert}, now)
	if err != nil {
		t.Fatal(err)
	}
	if got, err = short.Issue(request, cart, signer.DefaultTTL, now); err != nil || !got.Leaf.NotAfter.Equal(soon) {
		t.Errorf("ends at %v, %v; want %v", got, err, soon)
	}
	if len(got.Chain) != 4 || !parse(t, got.Chain[1])[0].Equal(own.cert) || !parse(t, got.Chain[2])[0].Equal(middle.cert) || !parse(t, got.Chain[3])[0].Equal(root.cert) {
		t.Errorf("the chain is %q", got.Chain)
	}
	for _, at := range []time.Time{soon.Add(-30 * time.Second), soon.Add(time.Hour)} {
		if _, err := short.Issue(request, cart, signer.DefaultTTL, at); !errors.Is(err, signer.ErrEnded) {
			t.Errorf("issued at %s by a CA that ends at %s: %v", at, soon, err)
		}
	}
}

// A CA that could not sign is refused when it is loaded.
func TestUnusableAuthorities(t *testing.T) {
	root, hours := newRoot(t), time.Now().Add(100*time.Hour)
	leaf := root.sign(t, "leaf", hours, func(c *x509.Certificate) { c.IsCA = false; c.KeyUsage = x509.KeyUsageDigitalSignature })
	unable := root.sign(t, "unable", hours, func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageCRLSign })
	ended := root.sign(t, "ended", time.Now().Add(-time.Hour), nil)
	good, other := root.sign(t, "good", hours, nil), newRoot(t)
	for want, c := range map[string]struct {
		key   *authority
		chain []*authority
		root  *authority
	}{
		`"CN=leaf" cannot sign others`:             {leaf, []*authority{leaf}, root},
		`"CN=unable" cannot sign others`:           {unable, []*authority{unable}, root},
		`"CN=ended" is valid from`:                 {ended, []*authority{ended}, root},
		`the key is not that of the certificate`:   {other, []*authority{good}, root},
		`"CN=good" is not one of the given roots`:  {good, []*authority{good}, other},
		`the root "CN=leaf" has no CA bit`:         {good, []*authority{good}, leaf},
		`needs its certificate and at least one r`: {good, nil, root},
	} {
		var chain []*x509.Certificate
		for _, a := range c.chain {
			chain = append(chain, a.cert)
		}
		if _, err := signer.New(c.key.key, chain, []*x509.Certificate{c.root.cert}, time.Now()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
}

func BenchmarkIssue(b *testing.B) {
	t := &testing.T{}
	_, a := direct(t)
	data := requestPEM(t, &x509.CertificateRequest{}, newKey(t))
	for b.Loop() {
		r, err := signer.ParseRequest(data)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := a.Issue(r, cart, signer.DefaultTTL, time.Now()); err != nil {
			b.Fatal(err)
		}
	}
}
