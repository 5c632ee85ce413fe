package credential_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	"golang.org/x/crypto/ocsp"
)

// The times of all certificates of the tests.
var (
	begin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	end   = begin.AddDate(1, 0, 0)
)

// authority is a CA.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  crypto.Signer
}

func newKey(t *testing.T, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	return must(ecdsa.GenerateKey(curve, rand.Reader))(t)
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	key := newKey(t, elliptic.P256())
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: begin, NotAfter: end,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der := must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))(t)
	return &authority{t, must(x509.ParseCertificate(der))(t), key}
}

func (a *authority) pem() string { return block("CERTIFICATE", a.cert.Raw) }

// issue returns the certificate of a server with a key.
func (a *authority) issue(serial int64, public crypto.PublicKey) *x509.Certificate {
	a.t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), DNSNames: []string{"shop.example"}, NotBefore: begin, NotAfter: end}
	return must(x509.ParseCertificate(must(x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key))(a.t)))(a.t)
}

func (a *authority) crl() string {
	a.t.Helper()
	list := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: begin, NextUpdate: end}
	return block("X509 CRL", must(x509.CreateRevocationList(rand.Reader, list, a.cert, a.key))(a.t))
}

func (a *authority) staple(serial int64) []byte {
	a.t.Helper()
	response := ocsp.Response{Status: ocsp.Good, SerialNumber: big.NewInt(serial), ThisUpdate: begin, NextUpdate: end}
	return must(ocsp.CreateResponse(a.cert, a.cert, response, a.key))(a.t)
}

func block(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func keyPEM(t *testing.T, key crypto.Signer) string {
	t.Helper()
	return block("PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(key))(t))
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
