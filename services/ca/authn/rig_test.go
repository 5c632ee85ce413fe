package authn_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"meshlog.dev/services/ca/authn"
	"meshlog.dev/services/mesh/spiffe"
)

const domain = "cluster.local"

var cart = spiffe.ID{TrustDomain: domain, Namespace: "shop", ServiceAccount: "cart"}

// authenticate asks one authenticator.
func authenticate(t *testing.T, a authn.Authenticator, token string) (*authn.Proof, error) {
	t.Helper()
	return authn.Set{a}.Authenticate(t.Context(), authn.Credentials{Token: token})
}

// expectRefusal checks the code of a refusal, a part of its text, and that it does not
// repeat the token.
func expectRefusal(t *testing.T, p *authn.Proof, err error, code codes.Code, want, token string) {
	t.Helper()
	var r *authn.Refusal
	if p != nil || !errors.As(err, &r) || r.Code != code || !strings.Contains(err.Error(), want) {
		t.Errorf("%+v, %v; want %s and %q", p, err, code, want)
	} else if token != "" && strings.Contains(err.Error(), token) {
		t.Errorf("the refusal repeats the token: %v", err)
	}
}

// probe takes every JSON web token, and accepts none.
type probe struct{ asked *bytes.Buffer }

func (probe) Name() string { return "probe" }

func (probe) Takes(c authn.Credentials) bool { return strings.Count(c.Token, ".") == 2 }

func (p probe) Authenticate(context.Context, authn.Credentials) (*authn.Proof, error) {
	p.asked.WriteString("probe ")
	return nil, errors.New("never")
}
