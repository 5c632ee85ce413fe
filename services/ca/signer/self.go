package signer

import (
	"bytes"
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
	"os"
	"path/filepath"
	"slices"
	"time"

	"meshlog.dev/services/internal/seal"
)

// rootYears is how long a root of Self is valid.
const rootYears = 10

// nextExt ends the name of the file with the next key and root, beside the current one.
const nextExt = ".next"

// SelfFiles are the files of an authority that makes its own roots: a key and its root in
// one file, and the next key and root in another while they wait to sign (CA-10).
type SelfFiles struct {
	Path        string
	TrustDomain string
	Keys        Keys
}

// Own is a root of SelfFiles and its key.
type Own struct {
	key  crypto.Signer
	Root *x509.Certificate
}

// Open returns the current root and, unless it is nil, the next one. It makes the current
// one if its file is missing, and says so (CA-3). Replicas that share the files have one
// root, also when they start at once.
func (f SelfFiles) Open(now time.Time) (current, next *Own, made bool, err error) {
	if current, err = f.read(f.Path); errors.Is(err, fs.ErrNotExist) {
		made, err = f.create(f.Path, now)
		if err == nil {
			current, err = f.read(f.Path)
		}
	}
	if err != nil {
		return nil, nil, false, err
	}
	if next, err = f.read(f.Path + nextExt); errors.Is(err, fs.ErrNotExist) {
		return current, nil, made, nil
	}
	return current, next, made, err
}

// Prepare makes the next root, unless there is one. It signs nothing.
func (f SelfFiles) Prepare(now time.Time) error {
	_, err := f.create(f.Path+nextExt, now)
	return err
}

// Promote puts the next root in place of the current one, whose key is gone then. It does
// nothing unless next is the next root: another replica may have promoted it. Its callers
// hold a lock on the files.
func (f SelfFiles) Promote(next *x509.Certificate) error {
	own, err := f.read(f.Path + nextExt)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !own.Root.Equal(next) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := os.Rename(f.Path+nextExt, f.Path); err != nil {
		return err
	}
	return seal.SyncDir(filepath.Dir(f.Path))
}

// Authority returns the authority that signs with a root. Relying parties trust the other
// roots too, which may be nil or the same.
func (o *Own) Authority(now time.Time, others ...*x509.Certificate) (*Authority, error) {
	roots := []*x509.Certificate{o.Root}
	for _, c := range others {
		if c != nil && !slices.ContainsFunc(roots, c.Equal) {
			roots = append(roots, c)
		}
	}
	return New(o.key, roots[:1], roots, now)
}

// create makes a root in a file, unless it is there.
func (f SelfFiles) create(path string, now time.Time) (made bool, err error) {
	content, err := newRoot(f.TrustDomain, now)
	if err != nil {
		return false, err
	}
	err = f.Keys.create(path, content)
	if errors.Is(err, fs.ErrExist) { // another replica made it
		return false, nil
	}
	return err == nil, err
}

func (f SelfFiles) read(path string) (*Own, error) {
	content, err := f.Keys.read(path)
	if err != nil {
		return nil, err
	}
	key, err := parseKey(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	root, err := ParseCertificates(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &Own{key, root[0]}, nil
}

// Self returns the authority of SelfFiles, which are at path; see SelfFiles.Open.
func Self(path, trustDomain string, keys Keys, now time.Time) (a *Authority, made bool, err error) {
	current, _, made, err := SelfFiles{path, trustDomain, keys}.Open(now)
	if err != nil {
		return nil, false, err
	}
	if a, err = current.Authority(now); err != nil {
		return nil, false, fmt.Errorf("%s: %w", path, err)
	}
	return a, made, nil
}

// newRoot returns a key and its self-signed certificate as PEM.
func newRoot(trustDomain string, now time.Time) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{Organization: []string{trustDomain}, CommonName: "meshlog root " + serial.Text(16)[:8]},
		NotBefore: now.Add(-backdate), NotAfter: now.AddDate(rootYears, 0, 0),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		IsCA:     true, BasicConstraintsValid: true, MaxPathLenZero: true, // it signs leaves only
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.Write(pem.EncodeToMemory(&pem.Block{Type: keyBlock, Bytes: der}))
	b.Write(pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: cert}))
	return b.Bytes(), nil
}
