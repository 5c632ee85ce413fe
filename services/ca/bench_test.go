package ca_test

import (
	"crypto/rand"
	"crypto/x509"
	"testing"
	"time"

	"meshlog.dev/services/ca"
	"meshlog.dev/services/ca/signer"
)

// BenchmarkIssue renews certificates over gRPC, as after a change of the root. The floor
// is what x509 takes to sign the same certificate alone.
func BenchmarkIssue(b *testing.B) {
	r := start(b, func(c *ca.Config) { c.Limits = ca.Limits{PerSecond: 1 << 20, PerAddress: 1000} })
	a, req := r.agent(r.root.client(b, nil, cart.String())), newRequest(b)
	b.Run("grpc", func(b *testing.B) {
		b.SetParallelism(8)
		b.RunParallel(func(p *testing.PB) {
			for p.Next() {
				if _, err := a.client.CreateCertificate(b.Context(), req); err != nil {
					b.Error(err)
				}
			}
		})
	})
	b.Run("floor", func(b *testing.B) {
		key := newKey(b)
		template := r.root.sign(b, &x509.Certificate{NotAfter: time.Now().Add(signer.DefaultTTL), KeyUsage: x509.KeyUsageDigitalSignature}, key)
		b.RunParallel(func(p *testing.PB) {
			for p.Next() {
				if _, err := x509.CreateCertificate(rand.Reader, template, r.root.cert, key.Public(), r.root.key); err != nil {
					b.Error(err)
				}
			}
		})
	})
}
