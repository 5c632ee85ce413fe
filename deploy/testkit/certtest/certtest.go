// Package certtest makes certificates for tests. Its functions panic on errors,
// which only a bug in their caller causes.
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
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Pair is a certificate and its key, as PEM.
type Pair struct{ Cert, Key []byte }

// NewCA makes a self-signed CA that is valid for a day.
func NewCA(name string) *CA {
	t := template(pkix.Name{CommonName: name}, day())
	t.IsCA, t.BasicConstraintsValid, t.KeyUsage = true, true, x509.KeyUsageCertSign|x509.KeyUsageCRLSign
	c := &CA{cert: t, key: newKey()}
	c.cert = must(x509.ParseCertificate(c.create(t, c.key)))
	return c
}

// PEM returns the CA's certificate.
func (c *CA) PEM() []byte { return encode("CERTIFICATE", c.cert.Raw) }

// Pool returns a pool that trusts only this CA.
func (c *CA) Pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(c.cert)
	return p
}

// Server makes a certificate for a server on loopback that expires at a time.
func (c *CA) Server(name string, expires time.Time) Pair {
	return c.sign(server(pkix.Name{CommonName: name}, expires))
}

// Client makes a client certificate with these URIs as alternative names.
func (c *CA) Client(name string, uris ...string) Pair {
	t := client(pkix.Name{CommonName: name}, time.Now().Add(time.Hour))
	t.URIs = parse(uris)
	return c.sign(t)
}

// ClientUntil makes a client certificate as Client does, that expires at a time.
func (c *CA) ClientUntil(name string, expires time.Time, uris ...string) Pair {
	t := client(pkix.Name{CommonName: name}, expires)
	t.URIs = parse(uris)
	return c.sign(t)
}

// RevocationList returns a list of the CA, in PEM, with the certificates of pairs. It ends
// at a time.
func (c *CA) RevocationList(ends time.Time, revoked ...Pair) []byte {
	list := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: ends.Add(-48 * time.Hour), NextUpdate: ends}
	for _, p := range revoked {
		leaf := must(x509.ParseCertificate(p.TLS().Certificate[0]))
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: leaf.SerialNumber, RevocationTime: list.ThisUpdate})
	}
	return encode("X509 CRL", must(x509.CreateRevocationList(rand.Reader, list, c.cert, c.key)))
}

// Peer makes a certificate for a server on loopback that is also a client with
// these URIs as alternative names, valid for a day.
func (c *CA) Peer(name string, uris ...string) Pair { return c.ForgedPeer(name, nil, uris...) }

// ForgedPeer makes a certificate as Peer does, and calls change before it signs it.
func (c *CA) ForgedPeer(name string, change func(*x509.Certificate), uris ...string) Pair {
	t := server(pkix.Name{CommonName: name}, day())
	t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	t.URIs = parse(uris)
	if change != nil {
		change(t)
	}
	return c.sign(t)
}

// User makes a client certificate for a Kubernetes user in these groups, valid
// for a day.
func (c *CA) User(name string, groups ...string) Pair {
	return c.sign(client(pkix.Name{CommonName: name, Organization: groups}, day()))
}

func (c *CA) sign(t *x509.Certificate) Pair {
	key := newKey()
	return Pair{encode("CERTIFICATE", c.create(t, key)), encode("PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(key)))}
}

func (c *CA) create(t *x509.Certificate, key *ecdsa.PrivateKey) []byte {
	return must(x509.CreateCertificate(rand.Reader, t, c.cert, key.Public(), c.key))
}

// TLS parses the pair.
func (p Pair) TLS() tls.Certificate { return must(tls.X509KeyPair(p.Cert, p.Key)) }

// Write writes name.pem and name-key.pem into dir and returns their paths.
func (p Pair) Write(t testing.TB, dir, name string) (cert, key string) {
	t.Helper()
	return WriteFile(t, dir, name+".pem", p.Cert), WriteFile(t, dir, name+"-key.pem", p.Key)
}

// WriteFile writes a file into dir, atomically replaces an existing file of that
// name, and returns its path.
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

func day() time.Time { return time.Now().Add(24 * time.Hour) }

func template(subject pkix.Name, expires time.Time) *x509.Certificate {
	return &x509.Certificate{
		Subject: subject, NotBefore: expires.Add(-48 * time.Hour), NotAfter: expires, KeyUsage: x509.KeyUsageDigitalSignature,
	}
}

func server(subject pkix.Name, expires time.Time) *x509.Certificate {
	t := template(subject, expires)
	t.DNSNames, t.IPAddresses = []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	return t
}

func client(subject pkix.Name, expires time.Time) *x509.Certificate {
	t := template(subject, expires)
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return t
}

func parse(uris []string) (all []*url.URL) {
	for _, s := range uris {
		all = append(all, must(url.Parse(s)))
	}
	return all
}

func newKey() *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) }

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
