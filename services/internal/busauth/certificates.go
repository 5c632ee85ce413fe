package busauth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"meshlog.dev/services/internal/bus"
)

// The files of WriteCertificates.
const (
	caName     = "ca"
	serverName = "server"
	clientName = "client"
	certSuffix = ".pem"
	keySuffix  = ".key"
)

// Validity of certificates, and how long before its end they are renewed.
const (
	caYears    = 10
	certYears  = 1
	renewEarly = 30 * 24 * time.Hour
)

// WriteCertificates writes a certificate authority into a directory, and with it a
// certificate of servers with these names and one of clients. They are for tests
// and demos: the authority's key is in the directory, and there is no revocation.
// WriteCertificates keeps existing keys, and renews certificates that expire soon
// or have other names.
func WriteCertificates(dir string, names []string, now time.Time) ([]File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	a, files, err := ensureAuthority(dir, caName, "meshlog, for tests only", now)
	if err != nil {
		return nil, err
	}
	server := x509.Certificate{
		Subject: pkix.Name{CommonName: "meshlog bus"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	named(&server, names)
	client := x509.Certificate{
		Subject: pkix.Name{CommonName: "meshlog"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for name, template := range map[string]*x509.Certificate{serverName: &server, clientName: &client} {
		more, err := a.ensure(filepath.Join(dir, name), template, now)
		if err != nil {
			return nil, err
		}
		files = append(files, more...)
	}
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return files, nil
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func ensureAuthority(dir, name, about string, now time.Time) (authority, []File, error) {
	path := filepath.Join(dir, name)
	_, certErr := os.Stat(path + certSuffix)
	_, keyErr := os.Stat(path + keySuffix)
	if certErr == nil && errors.Is(keyErr, fs.ErrNotExist) {
		return authority{}, nil, fmt.Errorf("%s: its key is missing: sign the certificates with your own authority, or move the file away", path+certSuffix)
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: about},
		IsCA:    true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		NotAfter: now.AddDate(caYears, 0, 0),
	}
	var a authority
	files, err := a.ensure(path, template, now)
	return a, files, err
}

// ensure makes the key and the certificate at path if they are missing or outdated.
// They become those of an empty authority.
func (a *authority) ensure(path string, template *x509.Certificate, now time.Time) ([]File, error) {
	key, keyState, err := ensureECKey(path + keySuffix)
	if err != nil {
		return nil, err
	}
	own := a.cert == nil
	old, err := readCertificate(path + certSuffix)
	state := stateNew
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	case err == nil && keyState == stateNew:
		state = stateChanged
	case err == nil && (own || old.CheckSignatureFrom(a.cert) == nil) && still(old, template, now):
		state = StateKept
	case err == nil:
		state = stateChanged
	}
	cert := old
	if state != StateKept {
		if cert, err = a.sign(template, key, now); err != nil {
			return nil, fmt.Errorf("%s: %w", path+certSuffix, err)
		}
		b := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
		if err := bus.ReplaceFile(path+certSuffix, b, 0o644); err != nil {
			return nil, err
		}
	}
	if own {
		a.cert, a.key = cert, key
	}
	return []File{{path + certSuffix, state}, {path + keySuffix, keyState}}, nil
}

// still reports whether a certificate has the wanted names and does not expire soon.
func still(c, wanted *x509.Certificate, now time.Time) bool {
	ips := slices.EqualFunc(c.IPAddresses, wanted.IPAddresses, func(a, b net.IP) bool { return a.Equal(b) })
	return ips && slices.Equal(c.DNSNames, wanted.DNSNames) && now.Add(renewEarly).Before(c.NotAfter)
}

// sign makes a certificate; an empty authority makes a self-signed one.
func (a *authority) sign(template *x509.Certificate, key *ecdsa.PrivateKey, now time.Time) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	t := *template
	t.SerialNumber, t.NotBefore = serial, now.Add(-time.Hour) // clocks differ
	if t.NotAfter.IsZero() {
		t.NotAfter = now.AddDate(certYears, 0, 0)
	}
	t.KeyUsage |= x509.KeyUsageDigitalSignature
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = &t, key
	}
	der, err := x509.CreateCertificate(rand.Reader, &t, parent, key.Public(), signer)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func ensureECKey(path string) (*ecdsa.PrivateKey, string, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		key, err := newECKey(path)
		return key, stateNew, err
	}
	if err != nil {
		return nil, "", err
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, "", fmt.Errorf("%s: is not a key in PEM", path)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	ec, ok := key.(*ecdsa.PrivateKey)
	if err != nil || !ok {
		return nil, "", fmt.Errorf("%s: is not a key of this command; move the file away to get a new key", path)
	}
	return ec, StateKept, nil
}

func newECKey(path string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, bus.ReplaceFile(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600)
}

func readCertificate(path string) (*x509.Certificate, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, fmt.Errorf("%s: is not a certificate in PEM", path)
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}
