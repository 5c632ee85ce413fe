package signer

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"time"

	"meshlog.dev/services/internal/seal"
)

// Files of a plugged CA, with the names of Istio's Secret cacerts.
const (
	certFile  = "ca-cert.pem"
	keyFile   = "ca-key.pem"
	chainFile = "cert-chain.pem" // may be missing where a root has signed ca-cert.pem
	rootFile  = "root-cert.pem"
)

// interval is the time between two reads of the files.
const interval = 5 * time.Second

// Plugged is an authority whose certificate and key come from elsewhere, in a
// directory (CA-3). Run reads them again; new files that are broken, that do not
// fit each other, or that have ended do not replace good ones.
type Plugged struct {
	dir    string
	keys   Keys
	accept func(*Authority) error

	now     atomic.Pointer[plugged]
	trouble atomic.Pointer[error] // why the current files are not used; nil if they are
	doubted string                // the error of the previous read; used by Run only
}

// plugged is immutable.
type plugged struct {
	sum       [sha256.Size]byte // of the files
	authority *Authority
}

// LoadPlugged reads the files of a directory. Each new authority is used only if accept,
// unless it is nil, returns no error.
func LoadPlugged(dir string, keys Keys, accept func(*Authority) error) (*Plugged, error) {
	p := &Plugged{dir: dir, keys: keys, accept: accept}
	first, err := p.read()
	if err == nil {
		err = p.check(first)
	}
	if err != nil {
		return nil, err
	}
	p.now.Store(first)
	return p, nil
}

// Authority returns the authority in use.
func (p *Plugged) Authority() *Authority { return p.now.Load().authority }

// Trouble returns why the current files are not used, or nil.
func (p *Plugged) Trouble() error {
	if err := p.trouble.Load(); err != nil {
		return *err
	}
	return nil
}

// Run reads the files again until ctx is done. It logs each replacement, and each new
// error once.
func (p *Plugged) Run(ctx context.Context, log *slog.Logger) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	logged := ""
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if p.reload() {
			a := p.Authority()
			log.Info("the CA was replaced; new certificates are signed by the new one",
				"directory", p.dir, "subject", a.Certificate().Subject.String(), "serial", a.Certificate().SerialNumber.Text(16), "ends", a.Ends())
		}
		if trouble := p.Trouble(); trouble == nil {
			logged = ""
		} else if trouble.Error() != logged {
			logged = trouble.Error()
			log.Warn("the CA's files", "error", trouble)
		}
	}
}

// reload reads the files and reports whether it replaced the authority.
func (p *Plugged) reload() (replaced bool) {
	next, err := p.read()
	if err == nil && next.sum != p.now.Load().sum {
		err = p.check(next)
	}
	if err != nil {
		// The files may be replaced one after the other, so an error counts only if the
		// next read fails the same way.
		if p.doubted == err.Error() {
			err = fmt.Errorf("%w; the previous CA stays in use, until %s", err, p.Authority().Ends().UTC().Format(time.RFC3339))
			p.trouble.Store(&err)
		} else {
			p.doubted = err.Error()
		}
		return false
	}
	p.doubted = ""
	p.trouble.Store(nil)
	if next.sum == p.now.Load().sum {
		return false
	}
	p.now.Store(next)
	return true
}

func (p *Plugged) check(next *plugged) error {
	if p.accept == nil {
		return nil
	}
	if err := p.accept(next.authority); err != nil {
		return fmt.Errorf("%s: %w", p.dir, err)
	}
	return nil
}

func (p *Plugged) read() (*plugged, error) {
	in := func(name string) string { return filepath.Join(p.dir, name) }
	hash := sha256.New()
	content, err := p.keys.read(in(keyFile))
	if err != nil {
		return nil, err
	}
	part := func(name string, content []byte) {
		fmt.Fprintf(hash, "%s %d ", name, len(content))
		_, _ = hash.Write(content) // a hash takes all
	}
	part(keyFile, content)
	key, err := parseKey(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", in(keyFile), err)
	}
	var certs [3][]*x509.Certificate
	for i, name := range []string{certFile, chainFile, rootFile} {
		content, err := seal.ReadAtMost(in(name), maxFile)
		if name == chainFile && (errors.Is(err, fs.ErrNotExist) || err == nil && len(content) == 0) {
			continue
		}
		if err != nil {
			return nil, err
		}
		part(name, content)
		if certs[i], err = ParseCertificates(content); err != nil {
			return nil, fmt.Errorf("%s: %w", in(name), err)
		}
	}
	a, err := New(key, append(certs[0], certs[1]...), certs[2], time.Now())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.dir, err)
	}
	loaded := &plugged{authority: a}
	hash.Sum(loaded.sum[:0])
	return loaded, nil
}
