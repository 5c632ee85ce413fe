// Package spiffe reads and writes the identities of workloads:
// spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/SERVICE-ACCOUNT (CA-1).
//
// It is pure.
package spiffe

import (
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// ID is the identity of a workload. The zero ID is no identity.
type ID struct{ TrustDomain, Namespace, ServiceAccount string }

// Lengths that the SPIFFE standard and Kubernetes allow.
const (
	maxID          = 2048
	maxTrustDomain = 255
	maxAccount     = 253
)

var (
	label     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	subdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
)

// New returns the identity of a service account. All three names must be valid, so
// that an ID has one spelling only.
func New(trustDomain, namespace, serviceAccount string) (ID, error) {
	if err := CheckTrustDomain(trustDomain); err != nil {
		return ID{}, err
	}
	if !label.MatchString(namespace) {
		return ID{}, fmt.Errorf("%q is not the name of a namespace: use at most 63 lower-case letters, digits and -", namespace)
	}
	if len(serviceAccount) > maxAccount || !subdomain.MatchString(serviceAccount) {
		return ID{}, fmt.Errorf("%q is not the name of a service account: use at most %d lower-case letters, digits, dots and -", serviceAccount, maxAccount)
	}
	return ID{trustDomain, namespace, serviceAccount}, nil
}

// CheckTrustDomain returns why a name is not a trust domain, or nil.
func CheckTrustDomain(name string) error {
	// The library also takes a whole SPIFFE ID, and returns its trust domain.
	td, err := spiffeid.TrustDomainFromString(name)
	if err != nil || td.Name() != name || len(name) > maxTrustDomain {
		return fmt.Errorf("%q is not a trust domain: use at most %d lower-case letters, digits, -, _ and ., as in cluster.local", name, maxTrustDomain)
	}
	return nil
}

// Parse reads an identity. It accepts only what String writes.
func Parse(s string) (ID, error) {
	if len(s) > maxID {
		return ID{}, fmt.Errorf("an identity of %d bytes: at most %d are allowed", len(s), maxID)
	}
	parsed, err := spiffeid.FromString(s)
	if err != nil {
		return ID{}, fmt.Errorf("%q is not a SPIFFE ID: %w", s, err)
	}
	parts := strings.Split(parsed.Path(), "/")
	if len(parts) != 5 || parts[1] != "ns" || parts[3] != "sa" {
		return ID{}, fmt.Errorf("%q is not an identity of a workload: the form is spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/SERVICE-ACCOUNT", s)
	}
	id, err := New(parsed.TrustDomain().Name(), parts[2], parts[4])
	if err != nil {
		return ID{}, fmt.Errorf("%q is not an identity of a workload: %w", s, err)
	}
	return id, nil
}

// String formats the identity as a URI.
func (id ID) String() string {
	return "spiffe://" + id.TrustDomain + "/ns/" + id.Namespace + "/sa/" + id.ServiceAccount
}

// FromCertificate returns the identity of a workload's certificate: its only URI. A
// certificate of a CA has no identity, whatever its URI is, and neither has one with
// several URIs, of which each reader could take another (S34).
func FromCertificate(c *x509.Certificate) (ID, error) {
	if c.IsCA || c.KeyUsage&(x509.KeyUsageCertSign|x509.KeyUsageCRLSign) != 0 {
		return ID{}, errors.New("the certificate is one of a CA, not of a workload")
	}
	all, err := uris(c)
	if err != nil {
		return ID{}, err
	}
	if len(all) != 1 {
		return ID{}, fmt.Errorf("the certificate has %d URIs: an identity is the only one", len(all))
	}
	return Parse(all[0])
}

// Of a certificate: the extension with its alternative names, and the tag of a URI.
var subjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}

const uriTag = 6

// uris returns the URIs of a certificate as they are in it. Certificate.URIs has them
// parsed: formatted again, SPIFFE://A becomes spiffe://A, and a trailing # is lost.
func uris(c *x509.Certificate) (all []string, err error) {
	for _, e := range c.Extensions {
		if !e.Id.Equal(subjectAltName) {
			continue
		}
		var names []asn1.RawValue
		if rest, err := asn1.Unmarshal(e.Value, &names); err != nil || len(rest) > 0 {
			return nil, errors.New("the certificate's alternative names cannot be read")
		}
		for _, n := range names {
			if n.Class == asn1.ClassContextSpecific && n.Tag == uriTag {
				all = append(all, string(n.Bytes))
			}
		}
	}
	return all, nil
}
