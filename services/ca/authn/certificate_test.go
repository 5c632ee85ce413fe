package authn_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"meshlog.dev/services/ca/authn"
	"meshlog.dev/services/ca/signer"
)

// CA-5, CA-14: a certificate renews itself until it ends or its root is gone, also on a
// connection that is older than that.
func TestCertificateIsCheckedEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		newCA := func(name string) *signer.Authority {
			a, _, err := signer.Self(filepath.Join(t.TempDir(), name), domain, signer.Keys{Clear: true}, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		current := newCA("first")
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
		if err != nil {
			t.Fatal(err)
		}
		request, err := signer.ParseRequest(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
		if err != nil {
			t.Fatal(err)
		}
		issued, err := current.Issue(request, cart, time.Hour, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		c := authn.NewCertificate(domain, func() *signer.Authority { return current })
		ask := func() (*authn.Proof, error) {
			return authn.Set{c}.Authenticate(t.Context(), authn.Credentials{Certificates: []*x509.Certificate{issued.Leaf}})
		}
		<-time.After(time.Hour - time.Second)
		if p, err := ask(); err != nil || p.ID != cart || p.Authenticator != "certificate" {
			t.Errorf("%+v, %v", p, err)
		}
		first := current
		current = newCA("second")
		p, err := ask()
		expectRefusal(t, p, err, codes.Unauthenticated, "is not valid under the roots", "")
		current = first
		<-time.After(2 * time.Second)
		p, err = ask()
		expectRefusal(t, p, err, codes.Unauthenticated, "expired", "")
	})
}
