package signer

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"time"
)

// rootYears is how long a root of Self is valid.
const rootYears = 10

// Self returns the authority that makes its own root: key and certificate are in one
// file. Self makes them if the file is missing, and says so (CA-3). Replicas that share
// the file have one root, also when they start at once.
func Self(path, trustDomain string, keys Keys, now time.Time) (a *Authority, made bool, err error) {
	content, err := keys.read(path)
	if errors.Is(err, fs.ErrNotExist) {
		if content, err = newRoot(trustDomain, now); err != nil {
			return nil, false, err
		}
		if err := keys.create(path, content); err == nil {
			made = true
		} else if !errors.Is(err, fs.ErrExist) { // another replica made it
			return nil, false, err
		}
		content, err = keys.read(path)
	}
	if err != nil {
		return nil, false, err
	}
	key, err := parseKey(content)
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", path, err)
	}
	root, err := ParseCertificates(content)
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", path, err)
	}
	if a, err = New(key, root, root, now); err != nil {
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
