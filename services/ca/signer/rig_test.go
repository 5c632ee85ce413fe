package signer_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"meshlog.dev/services/ca/signer"
	"meshlog.dev/services/internal/seal"
	"meshlog.dev/services/mesh/spiffe"
)

var cart = spiffe.ID{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "cart"}

// authority is a CA of a test: its certificate and its key.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// sign makes a CA below a; of a nil authority a root. change may spoil it.
func (a *authority) sign(t *testing.T, name string, ends time.Time, change func(*x509.Certificate)) *authority {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: ends,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	if change != nil {
		change(template)
	}
	parent, signing := template, key
	if a != nil {
		parent, signing = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signing)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key}
}

func newRoot(t *testing.T) *authority {
	t.Helper()
	return (*authority)(nil).sign(t, "root", time.Now().Add(1000*time.Hour), nil)
}

func certPEM(all ...*authority) string {
	var b strings.Builder
	for _, a := range all {
		b.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
	}
	return b.String()
}

func (a *authority) keyPEM(t *testing.T) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// requestPEM signs a certificate request.
func requestPEM(t *testing.T, template *x509.CertificateRequest, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func newRequest(t *testing.T, key crypto.Signer) *signer.Request {
	t.Helper()
	r, err := signer.ParseRequest(requestPEM(t, &x509.CertificateRequest{}, key))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func sealKey(t *testing.T, secret string) *seal.Key {
	t.Helper()
	k, err := seal.NewKey([]byte(strings.Repeat(secret, 32)))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// parse returns the certificates of PEM data.
func parse(t *testing.T, data string) (all []*x509.Certificate) {
	t.Helper()
	rest := []byte(data)
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return all
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
}

// lockedBuffer is a log that a test reads while a goroutine writes.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
