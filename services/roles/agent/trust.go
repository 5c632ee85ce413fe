package agent

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"

	"meshlog.dev/services/agent/certificates"
	"meshlog.dev/services/agent/files"
	"meshlog.dev/services/agent/sds"
	"meshlog.dev/services/internal/seal"
)

// trust is which certificates, and whose, the agent and its Envoy trust: the roots that the
// mesh tells, and that of the workload's own certificate, which the CA signed under after
// every proxy had it.
type trust struct {
	settings *Settings
	secrets  *sds.Secrets
	keeper   *certificates.Keeper
	log      *slog.Logger

	saved string // file that keeps the mesh's roots over a restart; empty: none
	// ready is closed when the workload's certificate and its root are given to Envoy.
	ready chan struct{}

	mu   sync.Mutex
	mesh []byte // the roots that frontends tell, in PEM
	own  *certificates.Identity
}

// told takes the roots that a frontend sent.
func (t *trust) told(roots []byte) error {
	t.mu.Lock()
	changed := t.mesh != nil && !bytes.Equal(t.mesh, roots)
	t.mesh = roots
	err := t.publish()
	t.mu.Unlock()
	if t.saved != "" {
		if err := seal.WriteFile(t.saved, roots); err != nil {
			t.log.Error("cannot save the roots of the mesh; after a restart the agent begins with those before", "error", err)
		}
	}
	if changed {
		t.keeper.RootsChanged()
	}
	return err
}

// has takes the workload's certificate.
func (t *trust) has(id *certificates.Identity) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	first := t.own == nil
	t.own = id
	// Peers verify the new certificate under a root that they have; this Envoy must have
	// it before it shows the certificate, to verify peers that got theirs at the same time.
	if err := t.publish(); err != nil {
		return err
	}
	if err := t.secrets.SetPair(id); err != nil {
		return err
	}
	if first {
		close(t.ready)
	}
	return nil
}

// publish gives the roots to Envoy and to applications. t.mu is locked.
func (t *trust) publish() error {
	roots := t.roots()
	if err := t.secrets.SetRoots(roots); err != nil {
		return err
	}
	if t.settings.CertificatesOut == "" || t.own == nil {
		return nil
	}
	chain, key, err := sds.Pair(t.own)
	if err != nil {
		return err
	}
	out := files.Dir{Path: t.settings.CertificatesOut, Group: t.settings.CertificatesGroup}
	if err := out.Write(files.Content{Chain: chain, Key: key, Roots: roots}); err != nil {
		t.log.Error("cannot write the certificate for applications; they keep the one before", "error", err)
	}
	return nil
}

// roots returns all roots of the mesh, in PEM. t.mu is locked.
func (t *trust) roots() []byte {
	all := bytes.Clone(t.mesh)
	if t.own == nil {
		return all
	}
	for rest := t.mesh; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if bytes.Equal(block.Bytes, t.own.Root.Raw) {
			return all
		}
	}
	return append(all, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: t.own.Root.Raw})...)
}

// pool returns the roots of the mesh with those in a file.
func (t *trust) pool(file string) (*x509.CertPool, error) {
	t.mu.Lock()
	roots := t.roots()
	t.mu.Unlock()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(roots)
	if file == "" {
		return pool, nil
	}
	b, err := os.ReadFile(file)
	switch {
	case err == nil && pool.AppendCertsFromPEM(b):
		return pool, nil
	case len(roots) > 0:
		return pool, nil // the file was good when it was needed
	case err == nil:
		err = errors.New("it has no certificate")
	}
	return nil, fmt.Errorf("the roots in %s: %w", file, err)
}

// client returns the settings of a connection to a frontend.
func (t *trust) client(address string) (*tls.Config, error) {
	t.mu.Lock()
	own := t.own
	t.mu.Unlock()
	if own == nil {
		return nil, errors.New("the workload has no certificate yet")
	}
	pool := x509.NewCertPool()
	if t.settings.XDSCA != "" {
		b, err := os.ReadFile(t.settings.XDSCA)
		if err != nil || !pool.AppendCertsFromPEM(b) {
			return nil, errors.Join(fmt.Errorf("no CAs of frontends in %s", t.settings.XDSCA), err)
		}
	} else {
		var err error
		if pool, err = t.pool(""); err != nil {
			return nil, err
		}
	}
	name := t.settings.XDSServerName
	if name == "" {
		name, _, _ = net.SplitHostPort(address) // Check has seen it
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: pool, ServerName: name, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{own.Certificate},
	}, nil
}
