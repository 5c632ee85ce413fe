package ca

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/ca/signer"
	"meshlog.dev/services/internal/seal"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher"
)

const week = 7 * 24 * time.Hour

var quiet = slog.New(slog.DiscardHandler)

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// pair is a root and its key.
type pair struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newPair(t *testing.T, name string, ends time.Time) pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: ends,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	return pair{cert, key}
}

// under returns the authority that signs under a root and has these roots in its files.
func (p pair) under(t *testing.T, roots ...pair) *signer.Authority {
	t.Helper()
	var all []*x509.Certificate
	for _, r := range append([]pair{p}, roots...) {
		all = append(all, r.cert)
	}
	a, err := signer.New(p.key, all[:1], all, time.Now())
	must(t, err)
	return a
}

func states(all []root) string {
	var s []string
	for _, r := range all {
		s = append(s, r.cert.Subject.CommonName+" "+string(r.state))
	}
	slices.Sort(s)
	return strings.Join(s, ", ")
}

// CA-10: a root is announced, then active, then retiring, then removed, over restarts of
// the process; a root may not sign before all live proxies have applied it.
func TestRootsAreRotated(t *testing.T) {
	for _, sealed := range []bool{false, true} {
		t.Run(fmt.Sprint("sealed=", sealed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { rotate(t, sealed) })
		})
	}
}

func rotate(t *testing.T, sealed bool) {
	now := time.Now()
	before, after, third := newPair(t, "before", now.AddDate(10, 0, 0)), newPair(t, "after", now.AddDate(10, 0, 0)), newPair(t, "third", now.AddDate(10, 0, 0))
	var key *seal.Key
	if sealed {
		var err error
		key, err = seal.NewKey(bytes.Repeat([]byte("k"), 32))
		must(t, err)
	}
	path := filepath.Join(t.TempDir(), "roots.state")
	open := func() *roots {
		return &roots{path: path, seal: key, trustDomain: "cluster.local", longest: week, log: quiet}
	}
	step := func(wait time.Duration, a *signer.Authority, want string) {
		t.Helper()
		<-time.After(wait)
		r := open() // as after a restart
		must(t, r.accept(a), r.follow(a, a.Roots(), time.Now()))
		if got := states(r.all); got != want {
			t.Errorf("the roots are %q, want %q", got, want)
		}
		b, _ := r.bundle()
		k, _ := kind.ByName("TrustBundle")
		encoded, err := k.Encode(b)
		must(t, err)
		if len(encoded) == 0 {
			t.Error("the bundle is empty")
		}
	}
	refused := func(a *signer.Authority, want string) {
		t.Helper()
		if err := open().accept(a); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a root that proxies may not know: %v, want %q", err, want)
		}
	}
	step(0, before.under(t), "before active")
	refused(after.under(t, before), "no proxy knows the root")
	step(time.Hour, before.under(t, after), "after announced, before active")
	refused(after.under(t, before), "not all proxies trust it yet")
	must(t, open().clear(func([32]byte) []string { return []string{"a proxy has not applied it"} }, false))
	refused(after.under(t, before), "not all proxies trust it yet")
	must(t, open().clear(func([32]byte) []string { return nil }, false))
	step(time.Minute, after.under(t, before), "after active, before retiring")
	step(30*24*time.Hour, after.under(t, before), "after active, before retiring") // the files still have it
	// Back again: proxies trust it still.
	step(time.Hour, before.under(t, after), "after retiring, before active")
	step(time.Hour, after.under(t, before), "after active, before retiring")
	// Taken out of the files too early: certificates under it last for a week.
	step(time.Hour, after.under(t), "after active, before retiring")
	step(6*24*time.Hour, after.under(t), "after active, before retiring")
	step(week+time.Hour, after.under(t), "after active")
	// A root that never signed is removed at once.
	step(0, after.under(t, third), "after active, third announced")
	step(time.Hour, after.under(t), "after active")
	// An ended root goes, but the signing one stays.
	short := newPair(t, "short", time.Now().Add(time.Hour))
	step(0, after.under(t, short), "after active, short announced")
	step(2*time.Hour, after.under(t, short), "after active")

	emergency := open()
	emergency.any = true
	must(t, emergency.accept(third.under(t)), emergency.follow(third.under(t), third.under(t).Roots(), time.Now()))
	if got := states(emergency.all); got != "after retiring, third active" {
		t.Errorf("in an emergency the roots are %q", got)
	}
	raw, err := os.ReadFile(path)
	must(t, err)
	if seal.IsSealed(raw) != sealed {
		t.Errorf("the file is %q", raw)
	}
}

// CA-4, CA-10: a file of roots that the seal key does not open is not believed: proxies
// would trust what somebody wrote there. The error says which key is wanted.
func TestForgedRoots(t *testing.T) {
	a := newPair(t, "root", time.Now().Add(time.Hour)).under(t)
	right, err := seal.NewKey(bytes.Repeat([]byte("k"), 32))
	must(t, err)
	wrong, err := seal.NewKey(bytes.Repeat([]byte("w"), 32))
	must(t, err)
	path := filepath.Join(t.TempDir(), "roots.state")
	must(t, (&roots{path: path, seal: right, log: quiet}).follow(a, a.Roots(), time.Now()))
	for _, test := range []struct {
		key  *seal.Key
		want string
	}{{wrong, "was sealed with the seal key " + right.ID()}, {nil, "give the key that sealed it with --seal-key-file"}} {
		if err := (&roots{path: path, seal: test.key, log: quiet}).follow(a, a.Roots(), time.Now()); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v, want %q", err, test.want)
		}
	}
	must(t, os.WriteFile(path, []byte(`{"roots":[]}`), 0o600))
	if err := (&roots{path: path, seal: right, log: quiet}).follow(a, a.Roots(), time.Now()); !errors.Is(err, seal.ErrNotSealed) {
		t.Errorf("a file in clear: %v", err)
	}
}

// sink records what a watcher publishes.
type sink chan watcher.Object

func (s sink) List(_ context.Context, l watcher.Listing) error {
	s <- l.Objects[0]
	return nil
}

func (s sink) Change(_ context.Context, set []watcher.Object) error {
	s <- set[0]
	return nil
}

func (sink) Problems(string, []problem.Diagnostic) {}

// CA-9: the roots are an object of the source ca, and it follows their states.
func TestSourceFollowsRoots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := newPair(t, "one", time.Now().AddDate(1, 0, 0)), newPair(t, "two", time.Now().AddDate(1, 0, 0))
		current := one.under(t)
		r := &roots{path: filepath.Join(t.TempDir(), "roots"), trustDomain: "example.org", log: quiet}
		must(t, r.follow(current, current.Roots(), time.Now()))
		ctx, stop := context.WithCancel(t.Context())
		published, ended := make(sink), make(chan error, 2)
		go func() { ended <- (&source{"example.org", r}).Run(ctx, published) }()
		hear := func(want string) {
			t.Helper()
			o := <-published
			b := new(registryv1.TrustBundle)
			must(t, proto.Unmarshal(o.Value.Bytes, b))
			var got []string
			for _, c := range b.GetRoots() {
				certs, err := signer.ParseCertificates([]byte(c.GetCertificate()))
				must(t, err)
				got = append(got, certs[0].Subject.CommonName+" "+c.GetState().String())
			}
			slices.Sort(got)
			if o.Kind != "TrustBundle" || o.Name != "example.org" || b.GetTrustDomain() != "example.org" || strings.Join(got, ", ") != want {
				t.Errorf("published %s %s: %s, want %s", o.Kind, o.Name, got, want)
			}
		}
		hear("one ROOT_STATE_ACTIVE")
		current = one.under(t, two)
		moves := &rotation{roots: r, gate: newGate(time.Now()), signing: signing{
			authority: func() *signer.Authority { return current }, given: func() []*x509.Certificate { return current.Roots() },
			step: func(time.Time) error { return nil },
		}}
		go func() { ended <- moves.run(ctx) }()
		hear("one ROOT_STATE_ACTIVE, two ROOT_STATE_ANNOUNCED")
		stop()
		for range 2 {
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
	})
}
