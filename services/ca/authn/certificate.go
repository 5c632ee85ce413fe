package authn

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"

	"meshlog.dev/services/ca/signer"
	"meshlog.dev/services/mesh/spiffe"
)

// Certificate authenticates by a certificate under the CA's roots. The caller gets a
// certificate for the same identity, and nothing else (CA-5).
type Certificate struct {
	authority   func() *signer.Authority
	trustDomain string
}

// NewCertificate returns the authenticator. The function returns the authority in use.
func NewCertificate(trustDomain string, authority func() *signer.Authority) *Certificate {
	return &Certificate{authority, trustDomain}
}

// Name implements Authenticator.
func (*Certificate) Name() string { return "certificate" }

// Takes implements Authenticator.
func (*Certificate) Takes(c Credentials) bool { return c.Token == "" && len(c.Certificates) > 0 }

// Authenticate implements Authenticator. The connection may be older than the
// certificate's end, or than its CA's, so all is checked for each call.
func (a *Certificate) Authenticate(_ context.Context, c Credentials) (*Proof, error) {
	leaf := c.Certificates[0]
	if err := a.authority().Verify(leaf, c.Certificates[1:], time.Now()); err != nil {
		return nil, refuse(codes.Unauthenticated, err, "the client's certificate is not valid under the roots of this CA")
	}
	id, err := spiffe.FromCertificate(leaf)
	if err != nil {
		return nil, refuse(codes.PermissionDenied, err, "the client's certificate has no identity")
	}
	if id.TrustDomain != a.trustDomain {
		return nil, refuse(codes.PermissionDenied, nil, "the client's certificate is of trust domain %s, and this CA issues for %s only", id.TrustDomain, a.trustDomain)
	}
	return &Proof{ID: id, Facts: map[string]string{"serial": leaf.SerialNumber.Text(16)}}, nil
}
