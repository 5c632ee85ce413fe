package ca

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"meshlog.dev/services/ca/signer"
)

// Times of the certificate of the CA's own port (CA-8, CA-11).
const (
	servingTTL   = signer.DefaultTTL
	servingLook  = 5 * time.Second // how often a new authority is noticed
	servingRetry = time.Second
	servingSlow  = time.Minute
)

// serving is the certificate of the CA's port, or of another port of this process, which
// the CA issues itself. Its key is in memory only. New connections get the latest
// certificate.
type serving struct {
	port      string // for messages
	authority func() *signer.Authority
	names     []string
	log       *slog.Logger

	now     atomic.Pointer[served]
	trouble atomic.Pointer[error] // why it was not renewed; nil: it was
}

// served is immutable.
type served struct {
	cert  tls.Certificate
	by    *signer.Authority
	renew time.Time
}

func newServing(port string, authority func() *signer.Authority, names []string, log *slog.Logger) (*serving, error) {
	s := &serving{port: port, authority: authority, names: names, log: log}
	if err := s.issue(time.Now()); err != nil {
		return nil, fmt.Errorf("the certificate of %s: %w", port, err)
	}
	return s, nil
}

// config returns the configuration of the port.
func (s *serving) config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.certificate(), nil },
	}
}

func (s *serving) certificate() *tls.Certificate { return &s.now.Load().cert }

// issue makes a new certificate, and plans to renew it at half of its time, give or take a
// tenth, so that replicas do not renew at once.
func (s *serving) issue(now time.Time) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	by := s.authority()
	issued, err := by.IssueServing(key.Public(), s.names, servingTTL, now)
	if err != nil {
		return err
	}
	cert := tls.Certificate{PrivateKey: key, Leaf: issued.Leaf}
	for _, c := range issued.Chain {
		block, _ := pem.Decode([]byte(c))
		cert.Certificate = append(cert.Certificate, block.Bytes)
	}
	lasts := issued.Leaf.NotAfter.Sub(now)
	s.now.Store(&served{cert, by, now.Add(time.Duration(float64(lasts) * (.4 + .2*mathrand.Float64())))})
	return nil
}

// run renews the certificate in time, and when the authority changes.
func (s *serving) run(ctx context.Context) error {
	tick := time.NewTicker(servingLook)
	defer tick.Stop()
	var retry time.Time
	pause := servingRetry
	for {
		var now time.Time
		select {
		case <-ctx.Done():
			return ctx.Err()
		case now = <-tick.C:
		}
		before := s.now.Load()
		if before.by == s.authority() && now.Before(before.renew) || now.Before(retry) {
			continue
		}
		if err := s.issue(now); err != nil {
			err = fmt.Errorf("the certificate of %s is not renewed, and ends at %s: %w", s.port, before.cert.Leaf.NotAfter.UTC().Format(time.RFC3339), err)
			if s.trouble.Swap(&err) == nil {
				s.log.Warn("cannot renew a certificate; retrying", "error", err)
			}
			retry, pause = now.Add(pause), min(2*pause, servingSlow)
			continue
		}
		s.trouble.Store(nil)
		retry, pause = time.Time{}, servingRetry
		s.log.Info("renewed the certificate of "+s.port, "names", s.names, "ends", s.now.Load().cert.Leaf.NotAfter)
	}
}

// problem returns why the certificate was not renewed.
func (s *serving) problem() error {
	if err := s.trouble.Load(); err != nil {
		return *err
	}
	return nil
}

// ready returns an error if the certificate has ended.
func (s *serving) ready(now time.Time) error {
	if end := s.now.Load().cert.Leaf.NotAfter; now.After(end) {
		return fmt.Errorf("the certificate of %s has ended at %s", s.port, end.UTC().Format(time.RFC3339))
	}
	return nil
}

func (s *serving) report() certificate {
	now := s.now.Load()
	return certificate{s.names, now.cert.Leaf.SerialNumber.Text(16), now.cert.Leaf.NotAfter, now.renew}
}

func (s *serving) metric() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "meshlog_ca_serving_certificate_expiry_timestamp_seconds",
		Help: "When the certificate of the CA's own port ends, in Unix time. The CA renews it at half of its 24 h; the log says why if it does not.",
	}, func() float64 { return float64(s.now.Load().cert.Leaf.NotAfter.Unix()) })
}
