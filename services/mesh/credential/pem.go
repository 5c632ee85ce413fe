package credential

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/ocsp"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
)

// The types of the blocks that a reference may have.
const (
	certificateBlock = "CERTIFICATE"
	crlBlock         = "X509 CRL"
)

var dashes = []byte("-----")

// blocks decodes PEM that has only blocks of one type, and text around them, which
// often says what a certificate is. Its errors do not quote the content.
func blocks(b []byte, block string) (der [][]byte, err error) {
	for {
		// Decode skips a block that is broken: what comes before a good one must be text.
		next, rest := pem.Decode(b)
		around := b
		if next != nil {
			around = b[:bytes.LastIndex(b[:len(b)-len(rest)], []byte("-----BEGIN "))]
		}
		switch {
		case bytes.Contains(around, dashes):
			return nil, errors.New("holds a block of PEM that is broken or incomplete")
		case next == nil && len(der) == 0:
			return nil, fmt.Errorf("holds no block %s of PEM", block)
		case next == nil:
			return der, nil
		case next.Type != block:
			return nil, fmt.Errorf("holds a block of PEM that is no %s", block)
		}
		der, b = append(der, next.Bytes), rest
	}
}

// canonical returns the blocks of b without headers and the text around them, which
// may hold anything.
func canonical(b []byte, block string) (string, error) {
	der, err := blocks(b, block)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for i, d := range der {
		switch block {
		case certificateBlock:
			_, err = x509.ParseCertificate(d)
		case crlBlock:
			_, err = x509.ParseRevocationList(d)
		}
		if err != nil {
			return "", unparsed(block, i)
		}
		if err := pem.Encode(&out, &pem.Block{Type: block, Bytes: d}); err != nil {
			return "", err
		}
	}
	return out.String(), nil
}

func unparsed(block string, i int) error { return fmt.Errorf("block %d is no %s", i+1, block) }

// strict fails if a text is not what canonical returns.
func strict(text, block string) error {
	same, err := canonical([]byte(text), block)
	if err == nil && same != text {
		err = errors.New("holds more than blocks of PEM")
	}
	return err
}

// Certificates returns the certificates in PEM, which may have text between them.
// Errors do not quote it.
func Certificates(b []byte) ([]*x509.Certificate, error) {
	der, err := blocks(b, certificateBlock)
	if err != nil {
		return nil, err
	}
	all := make([]*x509.Certificate, len(der))
	for i, d := range der {
		if all[i], err = x509.ParseCertificate(d); err != nil {
			return nil, unparsed(certificateBlock, i)
		}
	}
	return all, nil
}

func revocationLists(b []byte) ([]*x509.RevocationList, error) {
	der, err := blocks(b, crlBlock)
	if err != nil {
		return nil, err
	}
	all := make([]*x509.RevocationList, len(der))
	for i, d := range der {
		if all[i], err = x509.ParseRevocationList(d); err != nil {
			return nil, unparsed(crlBlock, i)
		}
	}
	return all, nil
}

// parseStaple parses an OCSP response about one certificate. Its errors do not quote
// the response.
func parseStaple(der []byte) (*ocsp.Response, error) {
	r, err := ocsp.ParseResponse(der, nil)
	var status ocsp.ResponseError
	switch {
	case errors.As(err, &status):
		return nil, fmt.Errorf("is an OCSP response that says %s", status.Status)
	case err != nil:
		return nil, errors.New("is no OCSP response in DER about one certificate")
	}
	return r, nil
}

// pairOf compares a certificate chain and a private key in PEM. It wipes what it
// decoded of the key.
func pairOf(chain, key []byte) registryv1.Pair {
	all, err := Certificates(chain)
	if err != nil {
		return registryv1.Pair_PAIR_UNREADABLE
	}
	private := privateKey(key)
	if private == nil {
		return registryv1.Pair_PAIR_UNREADABLE
	}
	public, ok := private.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(all[0].PublicKey) {
		return registryv1.Pair_PAIR_MISMATCH
	}
	return registryv1.Pair_PAIR_OK
}

// privateKey returns the first private key in PEM; nil if it cannot be read or is
// encrypted. Envoy skips other blocks too, such as EC PARAMETERS.
func privateKey(b []byte) crypto.Signer {
	for {
		block, rest := pem.Decode(b)
		if block == nil {
			return nil
		}
		b = rest
		if block.Type != "PRIVATE KEY" && !strings.HasSuffix(block.Type, " PRIVATE KEY") {
			continue
		}
		defer clear(block.Bytes)
		var key any
		var err error
		switch block.Type {
		case "PRIVATE KEY":
			key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		case "RSA PRIVATE KEY":
			key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
		case "EC PRIVATE KEY":
			key, err = x509.ParseECPrivateKey(block.Bytes)
		}
		if err != nil {
			return nil
		}
		signer, _ := key.(crypto.Signer)
		return signer
	}
}
