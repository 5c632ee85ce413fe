package certificates_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"meshlog.dev/services/agent/certificates"
)

// issuer signs what it is asked, unless it is away.
type issuer struct {
	t    *testing.T
	root *x509.Certificate
	key  *ecdsa.PrivateKey

	mu    sync.Mutex
	away  error
	ahead time.Duration // of its clock
	asked []time.Time
	how   []string // the token of each request, or "certificate"
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i := &issuer{t: t, key: key}
	i.root = i.sign(&x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().AddDate(0, 0, -2), NotAfter: time.Now().AddDate(1, 0, 0), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, &key.PublicKey)
	return i
}

func (i *issuer) sign(template *x509.Certificate, key any) *x509.Certificate {
	parent := i.root
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key, i.key)
	if err != nil {
		i.t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		i.t.Fatal(err)
	}
	return c
}

func (i *issuer) Issue(_ context.Context, r certificates.Request) ([]string, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	how := r.Token
	if r.Certificate != nil {
		how = "certificate"
	}
	i.asked, i.how = append(i.asked, time.Now()), append(i.how, how)
	if i.away != nil {
		return nil, i.away
	}
	block, _ := pem.Decode([]byte(r.CSR))
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, err
	}
	leaf := i.sign(&x509.Certificate{
		SerialNumber: big.NewInt(int64(len(i.asked) + 1)), NotBefore: time.Now().Add(i.ahead - 2*time.Minute), NotAfter: time.Now().Add(i.ahead + r.TTL), KeyUsage: x509.KeyUsageDigitalSignature,
	}, csr.PublicKey)
	var chain []string
	for _, c := range []*x509.Certificate{leaf, i.root} {
		chain = append(chain, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})))
	}
	return chain, nil
}

func (i *issuer) requests() []time.Time {
	i.mu.Lock()
	defer i.mu.Unlock()
	return append([]time.Time(nil), i.asked...)
}

func (i *issuer) setAhead(d time.Duration) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ahead = d
}

func (i *issuer) setAway(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.away = err
}

func token(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte("join\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// run runs a Keeper in the bubble of the test.
func run(t *testing.T, i *issuer, tokens certificates.Tokens) (*certificates.Keeper, func()) {
	return runFor(t, i, tokens, 24*time.Hour)
}

func runFor(t *testing.T, i *issuer, tokens certificates.Tokens, ttl time.Duration) (*certificates.Keeper, func()) {
	k := certificates.New(certificates.Config{Issuer: i, Tokens: tokens, TTL: ttl, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { _ = k.Run(ctx); close(ended) }()
	synctest.Wait()
	return k, func() { cancel(); <-ended }
}

// CA-8: a certificate is renewed at half of its time, give or take a tenth; the join token
// is used once. The agent keeps its certificate while the CA is away for 9 h, and asks
// again after 1 s to 1 min.
func TestRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(t)
		k, stop := run(t, i, &certificates.JoinFile{Path: token(t)})
		defer stop()
		first, _ := k.Current()
		if first == nil || k.Ready() != nil {
			t.Fatalf("no certificate: %v", k.Ready())
		}
		i.setAway(errors.New("the CA is away"))
		began := time.Now()
		<-time.After(15 * time.Hour)
		synctest.Wait()
		all := i.requests()
		if at := all[1].Sub(began).Hours(); at < 24*.4-.1 || at > 24*.6+.1 {
			t.Errorf("the first renewal came after %.2f h", at)
		}
		for n := 2; n < len(all); n++ {
			if gap := all[n].Sub(all[n-1]); gap < 500*time.Millisecond || gap > time.Minute {
				t.Errorf("attempt %d came after %s", n, gap)
			}
		}
		if k.Ready() != nil || k.Late() != nil || k.Trouble() == nil {
			t.Errorf("after 15 h: %v, %v, %v", k.Ready(), k.Late(), k.Trouble())
		}
		<-time.After(4 * time.Hour)
		if err := k.Late(); err == nil || !strings.Contains(err.Error(), "the CA is away") {
			t.Errorf("after 19 of 24 h: %v", err)
		}
		i.setAway(nil)
		<-time.After(time.Minute)
		synctest.Wait()
		now, _ := k.Current()
		if now == first || k.Late() != nil || k.Trouble() != nil {
			t.Errorf("not renewed: %v, %v", k.Late(), k.Trouble())
		}
		if i.how[0] != "join" || i.how[1] != "certificate" || now.Certificate.PrivateKey == first.Certificate.PrivateKey {
			t.Errorf("proofs %v, or the key is the one before", i.how[:2])
		}
	})
}

// CA-8: after a change of the roots the certificate is renewed within 5 min.
func TestRootsChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(t)
		k, stop := run(t, i, certificates.TokenFile(token(t)))
		defer stop()
		k.RootsChanged()
		<-time.After(5 * time.Minute)
		synctest.Wait()
		if n := len(i.requests()); n != 2 {
			t.Errorf("%d requests", n)
		}
	})
}

// A token that is spent is not sent again when the certificate has ended: a new one in the
// file is.
func TestSpentToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i, path := newIssuer(t), token(t)
		k, stop := run(t, i, &certificates.JoinFile{Path: path})
		defer stop()
		i.setAway(errors.New("away"))
		<-time.After(25 * time.Hour)
		i.setAway(nil)
		<-time.After(2 * time.Minute)
		synctest.Wait()
		if err := k.Ready(); err == nil || !strings.Contains(err.Error(), "make another one with `meshlog ca token`") {
			t.Errorf("with a spent token: %v", err)
		}
		if err := os.WriteFile(path, []byte("another"), 0o600); err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * time.Minute)
		synctest.Wait()
		if k.Ready() != nil || i.how[len(i.how)-1] != "another" {
			t.Errorf("with a new token: %v, %v", k.Ready(), i.how[len(i.how)-1])
		}
	})
}
