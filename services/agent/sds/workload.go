package sds

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"meshlog.dev/services/agent/certificates"
)

// Names of the secrets, as in Istio.
const (
	Default = "default" // the certificate of the workload
	RootCA  = "ROOTCA"  // the roots of the mesh
)

// Pair encodes a certificate with its chain, and its key, in PEM.
func Pair(id *certificates.Identity) (chain, key []byte, err error) {
	for _, der := range id.Certificate.Certificate {
		chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	der, err := x509.MarshalPKCS8PrivateKey(id.Certificate.PrivateKey)
	if err != nil {
		return nil, nil, err
	}
	return chain, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// SetPair sets the certificate of the workload.
func (s *Secrets) SetPair(id *certificates.Identity) error {
	chain, key, err := Pair(id)
	if err != nil {
		return err
	}
	return s.set(Default, chain, &tlsv3.Secret{Name: Default, Type: &tlsv3.Secret_TlsCertificate{
		TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: inline(chain), PrivateKey: inline(key)},
	}})
}

// SetRoots sets the roots of the mesh, in PEM. None would switch the verification of peers
// off (S16), so they change nothing.
func (s *Secrets) SetRoots(roots []byte) error {
	if len(bytes.TrimSpace(roots)) == 0 {
		return nil
	}
	return s.set(RootCA, roots, &tlsv3.Secret{Name: RootCA, Type: &tlsv3.Secret_ValidationContext{
		ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: inline(roots)},
	}})
}

// set names the version by what is public.
func (s *Secrets) set(name string, public []byte, secret proto.Message) error {
	a, err := anypb.New(secret)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(public)
	s.Set(name, hex.EncodeToString(sum[:8]), a)
	return nil
}

// Follow sets the certificate whenever k has another one, until ctx is done.
func (s *Secrets) Follow(ctx context.Context, k *certificates.Keeper) error {
	for {
		id, changed := k.Current()
		if id != nil {
			if err := s.SetPair(id); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

func inline(b []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b}}
}
