package authn

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"

	"meshlog.dev/services/ca/jointoken"
	"meshlog.dev/services/ca/signer"
	"meshlog.dev/services/mesh/spiffe"
)

// Certificate authenticates by a certificate under the CA's roots. The caller gets a
// certificate for the same identity, and nothing else (CA-5). One of a server, which the CA
// has issued, gets one for the same DNS names: it has no URI and is for servers only, so
// it is never one of a workload, and no workload's is one of a server (CA-11).
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
	if signer.IsServing(leaf) {
		if err := a.authority().VerifyServing(leaf, c.Certificates[1:], time.Now()); err != nil {
			return nil, refuse(codes.Unauthenticated, err, "the server's certificate is not valid under the roots of this CA")
		}
		if err := jointoken.CheckNames(leaf.DNSNames); err != nil {
			return nil, refuse(codes.PermissionDenied, err, "the server's certificate has names that this CA does not issue")
		}
		return &Proof{Serving: leaf.DNSNames, Facts: map[string]string{"serial": leaf.SerialNumber.Text(16)}}, nil
	}
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
