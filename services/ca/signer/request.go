package signer

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// maxRequest is how many bytes a certificate request may have. One for RSA with 8192
// bits has 3 KB.
const maxRequest = 16 << 10

// Sizes of RSA keys. Verifying with a larger one costs a proxy too much.
const (
	minRSA = 2048
	maxRSA = 8192
)

// Request is a certificate request whose signature is right: the client has the key.
// Names, extensions and constraints that it asks for have no effect (CA-7).
type Request struct {
	public any
	hash   [sha256.Size]byte
}

// KeyHash returns the SHA-256 of the public key, as SubjectPublicKeyInfo.
func (r *Request) KeyHash() [sha256.Size]byte { return r.hash }

// PublicKey returns the public key.
func (r *Request) PublicKey() crypto.PublicKey { return r.public }

// ParseRequest reads a certificate request in PEM.
func ParseRequest(data []byte) (*Request, error) {
	if len(data) > maxRequest {
		return nil, fmt.Errorf("the certificate request has %d bytes: at most %d are allowed", len(data), maxRequest)
	}
	block, rest := pem.Decode(data)
	if block == nil || block.Type != requestBlock && block.Type != "NEW "+requestBlock {
		return nil, errors.New("the certificate request is not a PEM block CERTIFICATE REQUEST")
	}
	if len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("something follows the certificate request: send one alone")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the certificate request cannot be read: %w", err)
	}
	if err := checkKey(csr.PublicKey); err != nil {
		return nil, err
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, fmt.Errorf("the certificate request is not signed with the key in it: %w", err)
	}
	return &Request{csr.PublicKey, sha256.Sum256(csr.RawSubjectPublicKeyInfo)}, nil
}

// checkKey returns why a key is too weak or of a kind that proxies refuse, or nil.
func checkKey(public any) error {
	switch k := public.(type) {
	case *ecdsa.PublicKey:
		if k.Curve == elliptic.P256() || k.Curve == elliptic.P384() {
			return nil
		}
		return fmt.Errorf("the key is ECDSA on %s: use P-256 or P-384", k.Curve.Params().Name)
	case *rsa.PublicKey:
		if bits := k.N.BitLen(); bits < minRSA || bits > maxRSA {
			return fmt.Errorf("the key is RSA with %d bits: use %d to %d", bits, minRSA, maxRSA)
		}
		return nil
	case ed25519.PublicKey:
		return nil
	}
	return fmt.Errorf("the key is of the kind %T: use ECDSA, RSA or Ed25519", public)
}
