// Package authn finds out which workload asks for a certificate (CA-5): by a token of
// a Kubernetes service account, of an OIDC issuer, a join token, or a certificate that
// the CA has issued.
package authn

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"

	"meshlog.dev/services/mesh/spiffe"
)

// MaxToken is how many bytes a token may have.
const MaxToken = 16 << 10

// Credentials are what a caller shows.
type Credentials struct {
	// Token is the bearer token; empty if there is none.
	Token string
	// Certificates are the certificate of the TLS client and those that it sent
	// with it. TLS has checked that the client has the key, and nothing else.
	Certificates []*x509.Certificate
}

// Authenticator checks credentials of one kind.
type Authenticator interface {
	// Name is the name of the kind, for metrics and the audit.
	Name() string
	// Takes reports whether credentials are of this kind, without checking them.
	Takes(c Credentials) bool
	// Authenticate returns what credentials prove, or a *Refusal.
	Authenticate(ctx context.Context, c Credentials) (*Proof, error)
}

// Proof is what credentials prove: the identity of a workload, or that the caller is a
// server with DNS names, never both (CA-11).
type Proof struct {
	ID            spiffe.ID
	Serving       []string // DNS names; with them ID is zero
	Authenticator string
	// Facts are what else is known of the caller, for the audit. None is a secret.
	Facts map[string]string

	spend func(context.Context) error
}

// Spend uses credentials up that are good for one certificate. It is called when
// everything else is checked, before signing (CA-6).
func (p *Proof) Spend(ctx context.Context) error {
	if p.spend == nil {
		return nil
	}
	return p.spend(ctx)
}

// Refusal is why a caller gets no certificate.
type Refusal struct {
	// Code is Unauthenticated, PermissionDenied if the caller is known and may not,
	// or Unavailable if it may try again.
	Code codes.Code
	// Reason is for the caller, Detail for log and audit; neither has a secret.
	Reason string
	Detail error // may be nil
}

// Error implements error.
func (r *Refusal) Error() string {
	if r.Detail == nil {
		return r.Reason
	}
	return r.Reason + ": " + r.Detail.Error()
}

// Unwrap returns the detail.
func (r *Refusal) Unwrap() error { return r.Detail }

func refuse(code codes.Code, detail error, reason string, args ...any) error {
	return &Refusal{Code: code, Reason: fmt.Sprintf(reason, args...), Detail: detail}
}

// Set is a list of authenticators. The first that takes credentials decides alone:
// an invalid token is not made up for by anything else. A token comes before a
// certificate.
type Set []Authenticator

// Authenticate returns what credentials prove, or a *Refusal.
func (s Set) Authenticate(ctx context.Context, c Credentials) (*Proof, error) {
	if len(c.Token) > MaxToken {
		return nil, refuse(codes.Unauthenticated, nil, "the token has %d bytes: at most %d are allowed", len(c.Token), MaxToken)
	}
	for _, a := range s {
		if !a.Takes(c) {
			continue
		}
		p, err := a.Authenticate(ctx, c)
		if err != nil {
			return nil, err
		}
		p.Authenticator = a.Name()
		return p, nil
	}
	switch {
	case c.Token != "":
		return nil, refuse(codes.Unauthenticated, nil, "this CA takes no token of this kind")
	case len(c.Certificates) > 0:
		return nil, refuse(codes.Unauthenticated, nil, "this CA takes no certificates: send a token as authorization: Bearer TOKEN")
	}
	return nil, refuse(codes.Unauthenticated, nil, "the request has neither a token nor a certificate: send authorization: Bearer TOKEN")
}

// identity returns the identity that names make. The names may come from a token, so
// they can be anything.
func identity(trustDomain, namespace, account string) (spiffe.ID, error) {
	id, err := spiffe.New(trustDomain, namespace, account)
	if err != nil {
		return spiffe.ID{}, refuse(codes.PermissionDenied, err, "the credentials name no workload")
	}
	return id, nil
}

// isJWT reports whether a token has the form of a JSON web token.
func isJWT(token string) bool { return strings.Count(token, ".") == 2 }

// issuerOf returns the issuer that a JSON web token claims to have; nothing is checked.
func issuerOf(token string) string {
	if !isJWT(token) || len(token) > MaxToken {
		return ""
	}
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	if err != nil {
		return ""
	}
	var claims struct {
		Issuer string `json:"iss"`
	}
	if json.Unmarshal(payload, &claims) != nil {
		return ""
	}
	return claims.Issuer
}
