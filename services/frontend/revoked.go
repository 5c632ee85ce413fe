package frontend

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"time"
)

// notRevoked returns what refuses clients whose certificate, or one above it, is on a
// revocation list of its issuer, in PEM; nil: there are no lists. A list that has ended
// refuses all clients of its issuer, as in Envoy (S17).
func notRevoked(lists string) func(tls.ConnectionState) error {
	if lists == "" {
		return nil
	}
	return func(state tls.ConnectionState) error {
		all, err := revocationLists(lists)
		if err != nil {
			return err
		}
		for _, chain := range state.VerifiedChains {
			if err = revoked(chain, all, time.Now()); err == nil {
				return nil
			}
		}
		return err
	}
}

func revocationLists(text string) ([]*x509.RevocationList, error) {
	var all []*x509.RevocationList
	for rest := []byte(text); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return all, nil
		}
		list, err := x509.ParseRevocationList(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("a revocation list of the mesh's roots: %w", err)
		}
		all = append(all, list)
	}
}

// revoked returns why a chain is refused, or nil.
func revoked(chain []*x509.Certificate, lists []*x509.RevocationList, now time.Time) error {
	for i, issuer := range chain[1:] {
		for _, list := range lists {
			if list.CheckSignatureFrom(issuer) != nil {
				continue
			}
			if now.After(list.NextUpdate) {
				return fmt.Errorf("the revocation list of %s has ended at %s", issuer.Subject, list.NextUpdate.UTC().Format(time.RFC3339))
			}
			if slices.ContainsFunc(list.RevokedCertificateEntries, func(e x509.RevocationListEntry) bool { return e.SerialNumber.Cmp(chain[i].SerialNumber) == 0 }) {
				return fmt.Errorf("the certificate with serial number %x is revoked", chain[i].SerialNumber)
			}
		}
	}
	return nil
}
