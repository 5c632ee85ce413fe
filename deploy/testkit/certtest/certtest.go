// Package certtest makes certificates for tests.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// CA signs certificates.
type CA struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Pair is a certificate and its key, as PEM.
type Pair struct{ Cert, Key []byte }

// NewCA makes a CA of its own.
func NewCA(t testing.TB, name string) *CA {
	t.Helper()
	c := &CA{t: t, cert: template(t, name, time.Now().Add(24*time.Hour))}
	c.cert.IsCA, c.cert.BasicConstraintsValid, c.cert.KeyUsage = true, true, x509.KeyUsageCertSign
	c.key = newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, c.cert, c.cert, c.key.Public(), c.key)
	if err != nil {
		t.Fatal(err)
	}
	if c.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return c
}

// PEM is the CA's certificate.
func (c *CA) PEM() []byte { return encode("CERTIFICATE", c.cert.Raw) }

// Pool trusts the CA alone.
func (c *CA) Pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(c.cert)
	return p
}

// Server makes the certificate of a server on loopback that ends at a time.
func (c *CA) Server(name string, ends time.Time) Pair {
	t := template(c.t, name, ends)
	t.DNSNames, t.IPAddresses = []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	return c.sign(t)
}

// Client makes the certificate of a client, with the URIs that it is known by.
func (c *CA) Client(name string, uris ...string) Pair {
	t := template(c.t, name, time.Now().Add(time.Hour))
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	for _, s := range uris {
		u, err := url.Parse(s)
		if err != nil {
			c.t.Fatal(err)
		}
		t.URIs = append(t.URIs, u)
	}
	return c.sign(t)
}

func (c *CA) sign(t *x509.Certificate) Pair {
	c.t.Helper()
	key := newKey(c.t)
	der, err := x509.CreateCertificate(rand.Reader, t, c.cert, key.Public(), c.key)
	if err != nil {
		c.t.Fatal(err)
	}
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		c.t.Fatal(err)
	}
	return Pair{encode("CERTIFICATE", der), encode("PRIVATE KEY", k)}
}

// TLS is the pair as a program uses it.
func (p Pair) TLS(t testing.TB) tls.Certificate {
	t.Helper()
	c, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Write writes files into dir, and returns their paths.
func (p Pair) Write(t testing.TB, dir, name string) (cert, key string) {
	t.Helper()
	return WriteFile(t, dir, name+".pem", p.Cert), WriteFile(t, dir, name+"-key.pem", p.Key)
}

// WriteFile writes a file into dir, in the place of one of its name, and
// returns its path.
func WriteFile(t testing.TB, dir, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	return path
}

func template(t testing.TB, name string, ends time.Time) *x509.Certificate {
	t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: ends.Add(-48 * time.Hour), NotAfter: ends, KeyUsage: x509.KeyUsageDigitalSignature,
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
