// Package certificates keeps the certificates of a server as their files say, also
// when those are replaced while it runs.
//
// The files are read every few seconds and compared with what was read before:
// that holds for files that are renamed into place, for directories that are
// swapped by a symbolic link, as Kubernetes does, and on any file system. New
// connections get what was read last; those that stand keep what they have. A
// new pair that is broken, does not belong together or has ended does not take
// the place of a good one.
package certificates

import (
	"context"
	"crypto/sha256"
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

// interval is the time between two looks at the files.
const interval = 5 * time.Second

// Files are PEM files.
type Files struct {
	// Cert holds the server's certificate and its chain, Key its key.
	Cert, Key string
	// ClientCA holds whom to trust as signers of clients' certificates, which
	// are then required; empty: no client is asked for one.
	ClientCA string
}

// Certificates are what the files held last that is of use. Its methods may be
// called from any goroutine.
type Certificates struct {
	files   Files
	now     atomic.Pointer[loaded]
	trouble atomic.Pointer[error] // with what the files hold now; nil: none

	doubted string // what was read last if it was of no use; of Run
}

// loaded does not change.
type loaded struct {
	sum    [sha256.Size]byte // of all files
	config *tls.Config
	leaf   *x509.Certificate
	cas    []*x509.Certificate
	since  time.Time
}

// Load reads the files. Run looks at them again.
func Load(f Files) (*Certificates, error) {
	c := &Certificates{files: f}
	l, err := f.read()
	if err != nil {
		return nil, err
	}
	c.now.Store(l)
	return c, nil
}

// Config is that of a server of HTTP/2 that has, for each connection, the
// certificates of that moment.
func (c *Certificates) Config() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.now.Load().config, nil },
	}
}

// Run reads the files again as long as ctx is not done, and logs what comes of
// it.
func (c *Certificates) Run(ctx context.Context, log *slog.Logger) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	said := ""
	for {
		if trouble := c.Trouble(); trouble == nil {
			said = ""
		} else if trouble.Error() != said {
			said = trouble.Error()
			log.Warn("certificates", "error", trouble)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if c.look() {
			l := c.now.Load()
			log.Info("certificates were replaced; new connections get the new ones",
				"file", c.files.Cert, "serial", serial(l.leaf), "expires", l.leaf.NotAfter)
		}
	}
}

// look reads the files and says whether what they hold took the place of what
// was there.
func (c *Certificates) look() (replaced bool) {
	before := c.now.Load()
	l, err := c.files.read()
	if err == nil && l.sum != before.sum && l.ended() != nil && before.ended() == nil {
		err = l.ended()
	}
	if err != nil {
		// Files are replaced one after the other: believe it the second time.
		if c.doubted == err.Error() {
			err = fmt.Errorf("%w; the certificate from before is used on, until %s", err, before.leaf.NotAfter.UTC().Format(time.RFC3339))
			c.trouble.Store(&err)
		} else {
			c.doubted = err.Error()
		}
		return false
	}
	c.doubted = ""
	c.trouble.Store(nil)
	if l.sum == before.sum {
		return false
	}
	c.now.Store(l)
	return true
}

// Trouble is what is wrong with the files, or with the certificate that is in
// use; nil: nothing.
func (c *Certificates) Trouble() error {
	if err := c.trouble.Load(); err != nil {
		return *err
	}
	return c.now.Load().ended()
}

// ended says that the certificate is of no use to anybody.
func (l *loaded) ended() error {
	if time.Now().After(l.leaf.NotAfter) {
		return fmt.Errorf("the certificate ended at %s: replace it", l.leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}

func (f Files) read() (*loaded, error) {
	var content [3][]byte
	for i, path := range []string{f.Cert, f.Key, f.ClientCA} {
		if path == "" && i == 2 {
			continue
		}
		var err error
		if content[i], err = os.ReadFile(path); err != nil {
			var of *fs.PathError
			if errors.As(err, &of) {
				err = of.Err
			}
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	pair, err := tls.X509KeyPair(content[0], content[1])
	if err != nil {
		return nil, fmt.Errorf("certificate %s with key %s: %w", f.Cert, f.Key, err)
	}
	l := &loaded{
		leaf: pair.Leaf, since: time.Now(),
		config: &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{pair}},
	}
	h := sha256.New()
	for _, b := range content {
		sum := sha256.Sum256(b)
		h.Write(sum[:])
	}
	h.Sum(l.sum[:0])
	if f.ClientCA == "" {
		return l, nil
	}
	if l.cas, err = parseCAs(content[2]); err != nil {
		return nil, fmt.Errorf("%s: %w", f.ClientCA, err)
	}
	l.config.ClientAuth = tls.RequireAndVerifyClientCert
	l.config.ClientCAs = x509.NewCertPool()
	for _, ca := range l.cas {
		l.config.ClientCAs.AddCert(ca)
	}
	return l, nil
}

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
	// The first to end is the one to watch.
	slices.SortFunc(cas, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
	return cas, nil
}
