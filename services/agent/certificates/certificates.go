// Package certificates gets a certificate from the mesh's CA and renews it: that of the
// workload of an agent (AGT-3, CA-8), and that of the port of a frontend (CA-11). The key
// is made in memory, and is written only into a File or a SealedFile, if there is one.
package certificates

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"strings"
	"sync"
	"time"
)

// Times of a renewal (CA-8).
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
	// spread is the time over which the agents of a mesh ask for certificates under a new
	// root.
	spread = 5 * time.Minute
	// lateShare is the share of a certificate's time that is left when a renewal is late.
	lateShare = .25
)

// Request is a request for a certificate.
type Request struct {
	CSR string // PEM
	TTL time.Duration
	// Token proves the identity of the workload; empty: Certificate proves it.
	Token       string
	Certificate *tls.Certificate
}

// Issuer asks a CA. The chain that it returns has one certificate in each element, in
// PEM: that of the workload first, the root last.
type Issuer interface {
	Issue(ctx context.Context, r Request) (chain []string, err error)
}

// Identity is a certificate with its key and the root of its CA. It is immutable.
type Identity struct {
	Certificate tls.Certificate // with Leaf, without the root
	Root        *x509.Certificate
	Since       time.Time // when it was received
	until       time.Time // when it ends, by the clock of this host
}

// Ends returns when the first certificate of the chain ends.
func (i *Identity) Ends() time.Time {
	ends := i.Certificate.Leaf.NotAfter
	for _, der := range i.Certificate.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil && c.NotAfter.Before(ends) {
			ends = c.NotAfter
		}
	}
	return ends
}

// Config configures a Keeper.
type Config struct {
	Issuer Issuer
	// Tokens returns the token for the next request; it is called for each. An empty token
	// means that the current certificate proves the identity.
	Tokens Tokens
	// TTL is the wanted time of a certificate.
	TTL time.Duration
	// Saved keeps the certificate and its key over a restart; nil: nothing does.
	Saved Saver
	Log   *slog.Logger
}

// Saver keeps an identity over a restart.
type Saver interface{ Save(i *Identity) error }

// Tokens are how a workload proves its identity before it has a certificate.
type Tokens interface {
	// Token returns a token, or none if the certificate is to be used. has says whether the
	// workload has a certificate that is valid.
	Token(has bool) (string, error)
	// Used says that a token was accepted.
	Used()
}

// Keeper holds the current certificate.
type Keeper struct {
	Config

	mu      sync.Mutex
	now     *Identity
	changed chan struct{} // closed when now changes
	trouble error         // why the last request failed
	renewAt time.Time
	kick    chan struct{} // wakes Run if renewAt has become earlier
	issued  int
	failed  int
}

// New returns a Keeper. Run fills it.
func New(c Config) *Keeper {
	return &Keeper{Config: c, changed: make(chan struct{}), kick: make(chan struct{}, 1)}
}

// Current returns the certificate, or nil, and a channel that is closed when there is
// another one.
func (k *Keeper) Current() (*Identity, <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.now, k.changed
}

// Wait returns the certificate once there is one.
func (k *Keeper) Wait(ctx context.Context) (*Identity, error) {
	for {
		now, changed := k.Current()
		if now != nil {
			return now, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), k.Trouble())
		}
	}
}

// RootsChanged renews the certificate within five minutes, at a random time, because the
// CA may sign under another root (CA-8).
func (k *Keeper) RootsChanged() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.now == nil {
		return
	}
	if at := wall().Add(mathrand.N(spread)); at.Before(k.renewAt) {
		k.renewAt = at
		select {
		case k.kick <- struct{}{}:
		default:
		}
	}
}

// Run gets a certificate and renews it until ctx is done.
func (k *Keeper) Run(ctx context.Context) error {
	pause := firstRetry
	for {
		if err := k.wait(ctx); err != nil {
			return err
		}
		err := k.renew(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			pause = firstRetry
			continue
		}
		k.fail(err, pause)
		pause = min(2*pause, lastRetry)
	}
}

// wait waits until the next request is due.
func (k *Keeper) wait(ctx context.Context) error {
	for {
		k.mu.Lock()
		due := time.Until(k.renewAt)
		k.mu.Unlock()
		if due <= 0 {
			return ctx.Err()
		}
		timer := time.NewTimer(min(due, longestWait))
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-k.kick:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// fail records a failed request and plans the next one.
func (k *Keeper) fail(err error, pause time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	args := []any{"error", err, "next", pause}
	if k.now != nil {
		args = append(args, "ends", k.now.Ends())
	}
	if k.trouble == nil || k.trouble.Error() != err.Error() {
		k.Log.Warn("cannot get a certificate from the CA; retrying", args...)
	}
	k.trouble, k.failed = err, k.failed+1
	k.renewAt = wall().Add(pause/2 + mathrand.N(pause/2+1))
}

// renew asks for one certificate, with a new key.
func (k *Keeper) renew(ctx context.Context) error {
	before, _ := k.Current()
	valid := before != nil && time.Now().Before(before.until)
	token, err := k.Tokens.Token(valid)
	if err != nil {
		return err
	}
	r := Request{TTL: k.TTL, Token: token}
	if token == "" {
		if !valid {
			return errors.New("the certificate has ended, and there is no token for another one: make a new join token with `meshlog ca token`")
		}
		r.Certificate = &before.Certificate
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return err
	}
	r.CSR = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr}))
	asked := wall()
	chain, err := k.Issuer.Issue(ctx, r)
	if err != nil {
		return err
	}
	id, err := read(chain, key, wall())
	if err != nil {
		return fmt.Errorf("the answer of the CA cannot be used: %w", err)
	}
	if token != "" {
		k.Tokens.Used()
	}
	odd := id.judge(asked, k.TTL)
	if odd != nil && before.validAt(asked) {
		if err := k.hold(ctx, before, id, odd); err != nil {
			return err
		}
		odd = nil
	}
	if k.Saved != nil {
		if err := k.Saved.Save(id); err != nil {
			k.Log.Error("cannot save the certificate and its key; after a restart the one before is used while it lasts", "error", err)
		}
	}
	k.set(id, asked, odd)
	return nil
}

// set takes a certificate into use; odd says why it is not valid by the clock of this host.
func (k *Keeper) set(id *Identity, asked time.Time, odd error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.now, k.trouble = id, odd
	k.issued++
	k.renewAt = renewal(asked, id.until)
	close(k.changed)
	k.changed = make(chan struct{})
	k.Log.Info("got a certificate from the CA", "identity", subject(id.Certificate.Leaf), "serial", id.Certificate.Leaf.SerialNumber.Text(16),
		"ends", id.Ends(), "renewal", k.renewAt)
	if odd != nil {
		k.Log.Warn("the certificate is used although it is not valid here: there is no other", "error", odd)
	}
}

// wall returns the time by the clock, which counts the time in which the host was
// suspended.
func wall() time.Time { return time.Now().Round(0) }

// renewal returns when a certificate that lasts from one time to another is renewed: at
// half of it, give or take a tenth, so that agents do not all ask at once.
func renewal(from, to time.Time) time.Time {
	return from.Add(time.Duration(float64(to.Sub(from)) * (.4 + .2*mathrand.Float64())))
}

// subject returns the identity of a workload, or the names of a server.
func subject(c *x509.Certificate) string {
	if len(c.URIs) == 0 {
		return strings.Join(c.DNSNames, ",")
	}
	return c.URIs[0].String()
}

// read checks an answer of the CA.
func read(chain []string, key *ecdsa.PrivateKey, now time.Time) (*Identity, error) {
	if len(chain) < 2 {
		return nil, fmt.Errorf("it has %d certificates: want that of the workload first and the root last", len(chain))
	}
	var certs []*x509.Certificate
	for _, text := range chain {
		block, _ := pem.Decode([]byte(text))
		if block == nil || block.Type != "CERTIFICATE" {
			return nil, errors.New("it has text that is no certificate in PEM")
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		certs = append(certs, c)
	}
	leaf, root := certs[0], certs[len(certs)-1]
	if !key.PublicKey.Equal(leaf.PublicKey) {
		return nil, errors.New("its certificate is for another key")
	}
	id := &Identity{Certificate: tls.Certificate{PrivateKey: key, Leaf: leaf}, Root: root, Since: now}
	intermediates, roots := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(root)
	for i, c := range certs[:len(certs)-1] {
		id.Certificate.Certificate = append(id.Certificate.Certificate, c.Raw)
		if i > 0 {
			intermediates.AddCert(c)
		}
	}
	// A clock that is wrong must not keep the workload without a certificate: peers
	// decide whether it is valid, so it is checked at a time when it is.
	at := leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore) / 2)
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		return nil, err
	}
	return id, nil
}
