// Package certificates loads a server's certificate files and reloads them when
// they are replaced, without a restart.
//
// Certificates reads the files every five seconds and compares their contents.
// That works for files that are renamed into place, for directories that are
// swapped by a symbolic link, as Kubernetes does, and on every file system. New
// connections get the latest pair; open connections keep theirs. A new pair that
// is broken, mismatched or expired does not replace a good one.
//
// The package does not use grpc's certprovider/pemfile. Tried with a key that
// does not match its certificate, pemfile writes the private key into the log;
// it replaces a good pair with an expired one; it reports errors only to grpclog,
// so neither the status page nor a metric could show them; it has no expiry of
// client CAs; it starts with missing files, and then handshakes wait for them;
// and it rejects a certificate and a key in different directories.
package certificates

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"time"
)

// interval is the time between two reads of the files.
const interval = 5 * time.Second

// Files names the PEM files of a server.
type Files struct {
	// Cert has the server's certificate and its chain, Key its key.
	Cert, Key string
	// Issued returns the server's certificate, with Leaf, where a CA issues it and no
	// files have it. It is called at each read of the files. nil: Cert and Key have it.
	Issued func() *tls.Certificate
	// ClientCA has the CAs that clients' certificates must be signed by. If it is
	// empty, clients need no certificate.
	ClientCA string
}

// Certificates holds the latest valid contents of the files. Its methods may be
// called concurrently.
type Certificates struct {
	files   Files
	now     atomic.Pointer[loaded]
	trouble atomic.Pointer[error] // why the current files are not used; nil if they are

	doubted string // the error of the previous read; used by Run only
}

// loaded is immutable.
type loaded struct {
	content [3]string // of Files.Cert or what was issued, Key and ClientCA
	config  *tls.Config
	leaf    *x509.Certificate
	cas     []*x509.Certificate // the first to expire first
	since   time.Time
}

// Load reads the files. Run reloads them.
func Load(f Files) (*Certificates, error) {
	c := &Certificates{files: f}
	l, err := f.read()
	if err != nil {
		return nil, err
	}
	c.now.Store(l)
	return c, nil
}

// Config returns the configuration of an HTTP/2 server that uses the latest
// certificates for each connection.
func (c *Certificates) Config() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.now.Load().config, nil },
	}
}

// Run reloads the files until ctx is done. It logs each replacement, and each
// new error once.
func (c *Certificates) Run(ctx context.Context, log *slog.Logger) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	logged := ""
	for {
		if trouble := c.Trouble(); trouble == nil {
			logged = ""
		} else if trouble.Error() != logged {
			logged = trouble.Error()
			log.Warn("certificates", "error", trouble)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if c.reload() {
			l := c.now.Load()
			log.Info("certificates were replaced; new connections use the new ones",
				"file", c.files.Cert, "serial", serial(l.leaf), "expires", l.leaf.NotAfter)
		}
	}
}

// reload reads the files and reports whether it replaced the certificates in use.
func (c *Certificates) reload() (replaced bool) {
	before := c.now.Load()
	l, err := c.files.read()
	if err == nil && l.content != before.content && before.expired() == nil {
		err = l.expired()
	}
	if err != nil {
		// The files are replaced one after the other, so an error counts only if the
		// next read fails the same way.
		if c.doubted == err.Error() {
			err = fmt.Errorf("%w; the previous certificate stays in use, until %s", err, before.leaf.NotAfter.UTC().Format(time.RFC3339))
			c.trouble.Store(&err)
		} else {
			c.doubted = err.Error()
		}
		return false
	}
	c.doubted = ""
	c.trouble.Store(nil)
	if l.content == before.content {
		return false
	}
	c.now.Store(l)
	return true
}

// Trouble returns why the files cannot be used, or that the certificate in use has
// expired, or nil.
func (c *Certificates) Trouble() error {
	if err := c.trouble.Load(); err != nil {
		return *err
	}
	return c.now.Load().expired()
}

func (l *loaded) expired() error {
	if time.Now().After(l.leaf.NotAfter) {
		return fmt.Errorf("the certificate expired at %s: replace it", l.leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}

func (f Files) read() (*loaded, error) {
	l := &loaded{since: time.Now()}
	for i, path := range []string{f.Cert, f.Key, f.ClientCA} {
		if path == "" && (i == 2 || f.Issued != nil) {
			continue
		}
		b, err := os.ReadFile(path)
		if err != nil {
			var of *fs.PathError
			if errors.As(err, &of) {
				err = of.Err
			}
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		l.content[i] = string(b)
	}
	pair, err := f.pair(l)
	if err != nil {
		return nil, err
	}
	l.leaf = pair.Leaf
	l.config = &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{pair}}
	if f.ClientCA == "" {
		return l, nil
	}
	if l.cas, err = parseCAs([]byte(l.content[2])); err != nil {
		return nil, fmt.Errorf("%s: %w", f.ClientCA, err)
	}
	l.config.ClientAuth = tls.RequireAndVerifyClientCert
	l.config.ClientCAs = x509.NewCertPool()
	for _, ca := range l.cas {
		l.config.ClientCAs.AddCert(ca)
	}
	return l, nil
}

// pair returns the server's certificate. l has the content of the files, and gets that of
// an issued one, by which a new one is noticed.
func (f Files) pair(l *loaded) (tls.Certificate, error) {
	if f.Issued != nil {
		pair := *f.Issued()
		l.content[0] = string(bytes.Join(pair.Certificate, nil))
		return pair, nil
	}
	pair, err := tls.X509KeyPair([]byte(l.content[0]), []byte(l.content[1]))
	if err != nil {
		return pair, fmt.Errorf("certificate %s with key %s: %w", f.Cert, f.Key, err)
	}
	return pair, nil
}

// parseCAs returns the certificates in PEM data, the first to expire first.
func parseCAs(content []byte) (cas []*x509.Certificate, err error) {
	for {
		var block *pem.Block
		if block, content = pem.Decode(content); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		ca, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		cas = append(cas, ca)
	}
	if len(cas) == 0 {
		return nil, errors.New("holds no PEM certificate")
	}
	slices.SortFunc(cas, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
	return cas, nil
}
