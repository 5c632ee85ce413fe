package signer_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"meshlog.dev/services/ca/signer"
)

// CA-3, CA-4: the first start makes a root of ten years, later ones use it; on disk it
// is sealed.
func TestSelf(t *testing.T) {
	path, keys, now := filepath.Join(t.TempDir(), "ca"), signer.Keys{Seal: sealKey(t, "a")}, time.Now()
	first, made, err := signer.Self(path, "cluster.local", keys, now)
	if err != nil || !made {
		t.Fatal(made, err)
	}
	root := first.Certificate()
	if !root.IsCA || root.NotAfter.Year() != now.UTC().AddDate(10, 0, 0).Year() || root.PublicKeyAlgorithm != x509.ECDSA || !root.MaxPathLenZero {
		t.Errorf("the root is %+v", root)
	}
	again, made, err := signer.Self(path, "cluster.local", keys, now)
	if err != nil || made || !again.Certificate().Equal(root) {
		t.Errorf("the second start has another root: %v, %v", made, err)
	}
	raw, err := os.ReadFile(path)
	if err != nil || bytes.Contains(raw, []byte("PRIVATE KEY")) {
		t.Errorf("the key is in clear: %v", err)
	}
	if got, err := first.Issue(newRequest(t, newKey(t)), cart, signer.DefaultTTL, now); err != nil || again.Verify(got.Leaf, nil, now) != nil {
		t.Errorf("the second start does not know what the first issued: %v", err)
	}
	for want, keys := range map[string]signer.Keys{
		"was sealed with the seal key":           {Seal: sealKey(t, "b")},
		"is sealed: give the key that sealed it": {Clear: true},
	} {
		if _, _, err := signer.Self(path, "cluster.local", keys, now); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
}

// CA-4: the key is in clear only where that was allowed.
func TestClearKey(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "ca")
	if _, _, err := signer.Self(path, "cluster.local", signer.Keys{}, time.Now()); err == nil || !strings.Contains(err.Error(), "allow that with --insecure-ca-key-file") {
		t.Errorf("a key was made without a seal key: %v", err)
	}
	if _, made, err := signer.Self(path, "cluster.local", signer.Keys{Clear: true}, time.Now()); err != nil || !made {
		t.Fatal(made, err)
	}
	mounted, err := signer.InMemory(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = signer.Self(path, "cluster.local", signer.Keys{Seal: sealKey(t, "a")}, time.Now())
	if refused := err != nil && strings.Contains(err.Error(), "the key is in clear on a disk: seal it"); refused == mounted {
		t.Errorf("in memory: %v, and the error is %v", mounted, err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err = signer.Self(path, "cluster.local", signer.Keys{Clear: true}, time.Now()); err == nil || !strings.Contains(err.Error(), "every user may open it") {
		t.Errorf("a key that every user may read: %v", err)
	}
}

// CA-3: replicas that start at once with one file have one root.
func TestSelfAtOnce(t *testing.T) {
	path, keys := filepath.Join(t.TempDir(), "ca"), signer.Keys{Seal: sealKey(t, "a")}
	roots, makers := make([]*x509.Certificate, 6), 0
	var all sync.WaitGroup
	var mu sync.Mutex
	for i := range roots {
		all.Go(func() {
			a, made, err := signer.Self(path, "cluster.local", keys, time.Now())
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			roots[i] = a.Certificate()
			if made {
				makers++
			}
		})
	}
	all.Wait()
	for _, r := range roots[1:] {
		if !r.Equal(roots[0]) {
			t.Error("two replicas have different roots")
		}
	}
	if makers != 1 {
		t.Errorf("%d replicas made a root", makers)
	}
}

// outside is a key that this process cannot read.
type outside struct{ key crypto.Signer }

func (o outside) Public() crypto.PublicKey { return o.key.Public() }

func (o outside) Sign(random io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	return o.key.Sign(random, digest, opts)
}

// CA-4: the key may be a crypto.Signer outside, as in a KMS.
func TestKeyOutside(t *testing.T) {
	root := newRoot(t)
	a, err := signer.New(outside{root.key}, []*x509.Certificate{root.cert}, []*x509.Certificate{root.cert}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := a.Issue(newRequest(t, newKey(t)), cart, signer.DefaultTTL, time.Now()); err != nil || a.Verify(got.Leaf, nil, time.Now()) != nil {
		t.Error(err)
	}
}

// plugged runs a plugged CA in a bubble with fake time.
type plugged struct {
	dir  string
	root *authority
	*signer.Plugged
	log lockedBuffer
}

func (p *plugged) write(t *testing.T, own *authority, chain, roots string) {
	t.Helper()
	write(t, p.dir, "ca-cert.pem", certPEM(own))
	write(t, p.dir, "ca-key.pem", own.keyPEM(t))
	write(t, p.dir, "cert-chain.pem", chain)
	write(t, p.dir, "root-cert.pem", roots)
}

func (p *plugged) later() { <-time.After(11 * time.Second); synctest.Wait() }

func inBubble(t *testing.T, test func(t *testing.T, p *plugged)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := &plugged{dir: t.TempDir(), root: newRoot(t)}
		own := p.root.sign(t, "first", time.Now().Add(100*time.Hour), nil)
		p.write(t, own, certPEM(own, p.root), certPEM(p.root)) // as Istio's Makefile writes it
		var err error
		if p.Plugged, err = signer.LoadPlugged(p.dir, signer.Keys{Clear: true}, nil); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx, slog.New(slog.NewTextHandler(&p.log, nil))) }()
		synctest.Wait()
		test(t, p)
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// CA-3: the files of a plugged CA are read again, and the next certificate is signed
// with the new key.
func TestPluggedIsReadAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, p *plugged) {
		request := newRequest(t, newKey(t))
		got, err := p.Authority().Issue(request, cart, signer.DefaultTTL, time.Now())
		if err != nil || len(got.Chain) != 3 || got.Leaf.Issuer.CommonName != "first" {
			t.Fatalf("%v, %v", got, err)
		}
		second, newRoot := p.root.sign(t, "second", time.Now().Add(100*time.Hour), nil), newRoot(t)
		p.write(t, second, certPEM(second), certPEM(p.root, newRoot))
		p.later()
		next, err := p.Authority().Issue(request, cart, signer.DefaultTTL, time.Now())
		if err != nil || next.Leaf.Issuer.CommonName != "second" || p.Trouble() != nil {
			t.Fatalf("%v, %v, trouble %v", next, err, p.Trouble())
		}
		if last := parse(t, next.Chain[len(next.Chain)-1]); len(last) != 1 || !last[0].Equal(p.root.cert) || len(p.Authority().Roots()) != 2 {
			t.Errorf("%d roots are last, of %d", len(last), len(p.Authority().Roots()))
		}
		if n := strings.Count(p.log.String(), "the CA was replaced"); n != 1 {
			t.Errorf("logged %d times: %s", n, &p.log)
		}
		// The file that is left out of many Secrets.
		if err := os.Remove(filepath.Join(p.dir, "cert-chain.pem")); err != nil {
			t.Fatal(err)
		}
		p.later()
		if p.Trouble() != nil {
			t.Error(p.Trouble())
		}
	})
}

// CA-3: files that cannot be used do not replace good ones.
func TestPluggedInvalidFiles(t *testing.T) {
	for want, spoil := range map[string]func(t *testing.T, p *plugged){
		"root-cert.pem: holds no PEM":     func(t *testing.T, p *plugged) { write(t, p.dir, "root-cert.pem", "x") },
		"is not one of the given roots":   func(t *testing.T, p *plugged) { write(t, p.dir, "root-cert.pem", certPEM(newRoot(t))) },
		"the key is not that of the cert": func(t *testing.T, p *plugged) { write(t, p.dir, "ca-key.pem", newRoot(t).keyPEM(t)) },
		"ca-key.pem: holds no private":    func(t *testing.T, p *plugged) { write(t, p.dir, "ca-key.pem", certPEM(p.root)) },
		"cannot sign others": func(t *testing.T, p *plugged) {
			leaf := p.root.sign(t, "leaf", time.Now().Add(time.Hour), func(c *x509.Certificate) { c.IsCA = false })
			p.write(t, leaf, "", certPEM(p.root))
		},
		"is valid from": func(t *testing.T, p *plugged) {
			ended := p.root.sign(t, "ended", time.Now().Add(-time.Hour), nil)
			p.write(t, ended, "", certPEM(p.root))
		},
		"ca-cert.pem: no such file": func(t *testing.T, p *plugged) {
			if err := os.Remove(filepath.Join(p.dir, "ca-cert.pem")); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(want, func(t *testing.T) {
			inBubble(t, func(t *testing.T, p *plugged) {
				spoil(t, p)
				p.later()
				p.later()
				err := p.Trouble()
				if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "the previous CA stays in use") {
					t.Errorf("trouble: %v", err)
				}
				got, err := p.Authority().Issue(newRequest(t, newKey(t)), cart, signer.DefaultTTL, time.Now())
				if err != nil || got.Leaf.Issuer.CommonName != "first" {
					t.Errorf("%v, %v", got, err)
				}
				if n := strings.Count(p.log.String(), "level=WARN"); n != 1 || strings.Contains(p.log.String(), "PRIVATE") {
					t.Errorf("warned %d times: %s", n, &p.log)
				}
			})
		})
	}
}

// CA-4: the key of a plugged CA may be sealed.
func TestPluggedSealed(t *testing.T) {
	dir, root, k := t.TempDir(), newRoot(t), sealKey(t, "a")
	write(t, dir, "ca-cert.pem", certPEM(root))
	write(t, dir, "root-cert.pem", certPEM(root))
	if err := k.WriteFile(filepath.Join(dir, "ca-key.pem"), []byte(root.keyPEM(t))); err != nil {
		t.Fatal(err)
	}
	if _, err := signer.LoadPlugged(dir, signer.Keys{Seal: k}, nil); err != nil {
		t.Error(err)
	}
	if _, err := signer.LoadPlugged(dir, signer.Keys{Seal: sealKey(t, "b")}, nil); err == nil || !strings.Contains(err.Error(), "was sealed with the seal key") {
		t.Error(err)
	}
}
