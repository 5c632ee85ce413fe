package rig

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// TLS names PEM files: a certificate, its key, and the CAs that the peer is
// verified with.
type TLS struct{ Cert, Key, CA string }

// CA signs certificates for loopback that are valid for a day.
type CA struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewCA creates a CA that keeps its own files and the signed ones in dir.
func NewCA(dir, name string) (*CA, error) {
	c := &CA{dir: dir}
	t, err := template(name)
	if err != nil {
		return nil, err
	}
	t.IsCA, t.BasicConstraintsValid, t.KeyUsage = true, true, x509.KeyUsageCertSign
	if c.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, c.key.Public(), c.key)
	if err != nil {
		return nil, err
	}
	if c.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	_, err = c.write("ca", "CERTIFICATE", der)
	return c, err
}

// Sign writes a certificate for localhost and an identity, which may be empty. It
// replaces an earlier certificate of the same name.
func (c *CA) Sign(name, identity string) (TLS, error) {
	t, err := template(name)
	if err != nil {
		return TLS{}, err
	}
	t.DNSNames, t.IPAddresses = []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	if identity != "" {
		u, err := url.Parse(identity)
		if err != nil {
			return TLS{}, err
		}
		t.URIs = []*url.URL{u}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return TLS{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, t, c.cert, key.Public(), c.key)
	if err != nil {
		return TLS{}, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return TLS{}, err
	}
	files := TLS{CA: filepath.Join(c.dir, "ca.pem")}
	if files.Key, err = c.write(name+"-key", "PRIVATE KEY", private); err != nil {
		return TLS{}, err
	}
	files.Cert, err = c.write(name, "CERTIFICATE", der)
	return files, err
}

func template(name string) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, KeyUsage: x509.KeyUsageDigitalSignature,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}, err
}

// write replaces a file in one step.
func (c *CA) write(name, kind string, der []byte) (string, error) {
	path := filepath.Join(c.dir, name+".pem")
	if err := os.WriteFile(path+".new", pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		return "", err
	}
	return path, os.Rename(path+".new", path)
}
