package admission

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"sync/atomic"
	"time"
)

// serving chooses the certificate that the webhook shows: a new one only once the API
// server has its root, so that no request fails while certificates or roots change
// (ADM-4).
type serving struct {
	read func() (*tls.Certificate, error)

	now     atomic.Pointer[tls.Certificate]
	bundle  atomic.Pointer[[]*x509.Certificate] // what all API servers have; nil: not known
	trouble atomic.Pointer[error]               // why the files are not used; nil: they are

	before []*x509.Certificate // what the configuration had at the look before; used by seen only
}

func newServing(read func() (*tls.Certificate, error)) (*serving, error) {
	s := &serving{read: read}
	pair, err := read()
	if err != nil {
		return nil, err
	}
	s.now.Store(pair)
	return s, nil
}

var errNoRoot = errors.New("the API server does not have the root of the new certificate yet; the previous one stays in use")

// certificate returns the certificate to show. internal/certificates calls it every few
// seconds.
func (s *serving) certificate() *tls.Certificate {
	now := s.now.Load()
	next, err := s.read()
	if err == nil && !bytes.Equal(next.Certificate[0], now.Certificate[0]) {
		bundle := s.bundle.Load()
		switch {
		case bundle == nil || len(*bundle) == 0, verifies(*bundle, next.Certificate), time.Now().After(now.Leaf.NotAfter):
			s.now.Store(next)
			now = next
		default:
			err = errNoRoot
		}
	}
	if err != nil {
		s.trouble.Store(&err)
	} else {
		s.trouble.Store(nil)
	}
	return now
}

// seen takes the roots that the configuration has, every few seconds. API servers notice a
// change of it some time later, so a root counts once it was there at two looks.
func (s *serving) seen(roots []*x509.Certificate) {
	var both []*x509.Certificate
	for _, r := range roots {
		if s.bundle.Load() == nil || has(s.before, r) {
			both = append(both, r)
		}
	}
	s.before = roots
	s.bundle.Store(&both)
}

func (s *serving) problem() error {
	if err := s.trouble.Load(); err != nil {
		return *err
	}
	return nil
}

// verifies reports whether a chain leads to one of the roots.
func verifies(roots []*x509.Certificate, chain [][]byte) bool {
	pool, between := x509.NewCertPool(), x509.NewCertPool()
	for _, r := range roots {
		pool.AddCert(r)
	}
	var leaf *x509.Certificate
	for n, der := range chain {
		c, err := x509.ParseCertificate(der)
		switch {
		case err != nil:
			return false
		case n == 0:
			leaf = c
		default:
			between.AddCert(c)
		}
	}
	if leaf == nil {
		return false
	}
	_, err := leaf.Verify(x509.VerifyOptions{Roots: pool, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	return err == nil
}

// bundleOf returns the caBundle of the API server: the roots of the file and, of those that
// the API server has, each by which alone a certificate is verified that some replica
// shows. shown is nil if it is not known what the replicas show; all stay then. Roots that
// have ended go.
func bundleOf(file, had []*x509.Certificate, shown [][][]byte, known bool, now time.Time) []*x509.Certificate {
	var all []*x509.Certificate
	for _, r := range file {
		if !has(all, r) {
			all = append(all, r)
		}
	}
	for _, r := range had {
		if has(all, r) || now.After(r.NotAfter) {
			continue
		}
		needed := !known
		for _, chain := range shown {
			needed = needed || !verifies(file, chain) && verifies([]*x509.Certificate{r}, chain)
		}
		if needed {
			all = append(all, r)
		}
	}
	return all
}

func has(all []*x509.Certificate, c *x509.Certificate) bool {
	for _, a := range all {
		if a.Equal(c) {
			return true
		}
	}
	return false
}

func encodeRoots(roots []*x509.Certificate) []byte {
	var b bytes.Buffer
	for _, r := range roots {
		_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: r.Raw}) // a buffer takes everything
	}
	return b.Bytes()
}
