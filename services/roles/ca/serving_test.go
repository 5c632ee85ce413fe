package ca

import (
	"context"
	"crypto/x509"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"meshlog.dev/services/ca/signer"
)

// CA-11: the CA's port has a certificate of the CA for its DNS names, which is renewed
// without a restart at half of its time, and when the CA is replaced.
func TestServingCertificateIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := newPair(t, "one", time.Now().Add(40*24*time.Hour)), newPair(t, "two", time.Now().Add(400*24*time.Hour))
		var current atomic.Pointer[signer.Authority]
		current.Store(one.under(t))
		s, err := newServing("the CA's own port", current.Load, []string{"ca.example", "localhost"}, quiet)
		must(t, err)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.run(ctx) }()
		defer func() {
			stop()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}()
		config := s.config()
		serial := func(under pair) string {
			t.Helper()
			c, err := config.GetCertificate(nil)
			must(t, err)
			pool := x509.NewCertPool()
			pool.AddCert(under.cert)
			for _, name := range []string{"ca.example", "localhost"} {
				if _, err := c.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: name, CurrentTime: time.Now()}); err != nil {
					t.Errorf("as %s: %v", name, err)
				}
			}
			if _, err := c.Leaf.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: time.Now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err == nil {
				t.Error("the certificate of the port is good for a client")
			}
			if len(c.Leaf.URIs) > 0 || c.Leaf.Subject.CommonName != "" || c.Leaf.IsCA {
				t.Errorf("the certificate of the port is one of a workload: %+v", c.Leaf.URIs)
			}
			return c.Leaf.SerialNumber.Text(16)
		}
		first := serial(one)
		<-time.After(9 * time.Hour)
		if serial(one) != first {
			t.Error("it is renewed before 40 % of its time")
		}
		<-time.After(6 * time.Hour)
		second := serial(one)
		if second == first {
			t.Error("it is not renewed after 60 % of its time")
		}
		current.Store(two.under(t, one))
		<-time.After(servingLook + time.Second)
		if third := serial(two); third == second {
			t.Error("it is not issued again for a new CA")
		}
		// A CA that has ended renews nothing, says so, and is not ready at the end.
		current.Store(one.under(t))
		<-time.After(41 * 24 * time.Hour)
		if err := s.problem(); err == nil || !strings.Contains(err.Error(), "is not renewed, and ends at") || s.ready(time.Now()) == nil {
			t.Errorf("the problem is %v, ready %v", err, s.ready(time.Now()))
		}
		current.Store(two.under(t))
		<-time.After(2 * servingSlow)
		if err := errors.Join(s.problem(), s.ready(time.Now())); err != nil {
			t.Error(err)
		}
		serial(two)
	})
}
