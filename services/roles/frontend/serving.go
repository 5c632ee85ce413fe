package frontend

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"

	"meshlog.dev/services/agent/caclient"
	"meshlog.dev/services/agent/certificates"
	"meshlog.dev/services/internal/process"
)

// servingFile is the name of the sealed file with the certificate and its key, in Data.
const servingFile = "serving.sealed"

// rootsLook is how often new roots of the mesh are noticed.
const rootsLook = 5 * time.Second

// Serving are the settings of a frontend whose port has a certificate of the mesh's CA
// (CA-11).
type Serving struct {
	CA, ServerName, Roots string
	JoinTokenFile         string
	TTL                   time.Duration
	// Names are those in the certificate that the CA of this process issues; then Files.Issued
	// has it, and the other settings have no effect.
	Names []string

	issued *issued // nil before Certify
}

// ServingFlags defines the flags of Serving.
func (s *Settings) ServingFlags(fs *pflag.FlagSet) {
	v := &s.Serving
	v.TTL = 24 * time.Hour
	fs.StringVar(&v.CA, "ca", v.CA, "`address` of the mesh's CA, HOST:PORT, which issues the certificate of the xDS port, in place of --tls-cert. It is renewed at half of its time, without a restart. Needs --ca-roots, --join-token-file and --seal-key-file. "+
		"Set it so that agents trust the frontend by the roots of the mesh")
	fs.StringVar(&v.ServerName, "ca-server-name", v.ServerName, "`name` that the CA's certificate must be for. The default is the host of --ca")
	fs.StringVar(&v.Roots, "ca-roots", v.Roots, "PEM `file` with the roots by which the frontend trusts the CA, as `meshlog ca roots` prints them; roots that the mesh gets later are trusted too")
	fs.StringVar(&v.JoinTokenFile, "join-token-file", v.JoinTokenFile, "`file` with a join token that `meshlog ca token --serving HOST` made: HOST is in the certificate. The token is good for one certificate. Later ones are issued because the frontend shows the one that it has, also after a restart. If that has ended, write a new token into the file")
	fs.DurationVar(&v.TTL, "certificate-ttl", v.TTL, "`time` for which a certificate is asked for. Shorter: a stolen key is good for less; longer: the CA may be away for longer")
}

// checkServing returns an error for each setting that makes no sense.
func (s *Settings) checkServing() error {
	v := &s.Serving
	if len(v.Names) > 0 && s.TLS.Cert != "" {
		return process.Invalid("xds-names", "or --tls-cert and --tls-key, not both: a port has one certificate")
	}
	if v.CA == "" {
		for _, other := range []struct{ name, value string }{{"ca-server-name", v.ServerName}, {"ca-roots", v.Roots}, {"join-token-file", v.JoinTokenFile}} {
			if other.value != "" {
				return process.Invalid(other.name, "has no effect without --ca")
			}
		}
		return nil
	}
	var errs []error
	bad := func(setting, format string, args ...any) {
		errs = append(errs, process.Invalid(setting, format, args...))
	}
	if _, _, err := net.SplitHostPort(v.CA); err != nil {
		bad("ca", "want HOST:PORT")
	}
	if s.TLS.Cert != "" || s.TLS.Key != "" {
		bad("ca", "or --tls-cert and --tls-key, not both: a port has one certificate")
	}
	if v.Roots == "" {
		bad("ca-roots", "is missing: give the file with the roots by which the frontend trusts the CA; `meshlog ca roots` prints them")
	}
	if v.JoinTokenFile == "" {
		bad("join-token-file", "is missing: the CA issues a certificate only to a server that an operator has admitted, with `meshlog ca token --serving HOST`")
	}
	if s.SealKeyFile == "" {
		bad("seal-key-file", "is missing: a join token is good for one certificate, so the frontend keeps it and its key over a restart, sealed")
	}
	if v.TTL < time.Minute || v.TTL > 7*24*time.Hour {
		bad("certificate-ttl", "want 1m to 168h")
	}
	return errors.Join(errs...)
}

// verify returns an error if a file that the settings name cannot be used. The token may
// be gone: it is needed once.
func (v *Serving) verify() error {
	if _, err := readRoots(v.Roots); err != nil {
		return process.Invalid("ca-roots", "%w", err)
	}
	return nil
}

func readRoots(path string) (*x509.CertPool, error) {
	b, err := os.ReadFile(path)
	pool := x509.NewCertPool()
	if err == nil && !pool.AppendCertsFromPEM(b) {
		err = fmt.Errorf("%s has no certificate", path)
	}
	return pool, err
}

// issued is the certificate of the port, which the mesh's CA issues.
type issued struct {
	keeper *certificates.Keeper
	file   string                   // of roots
	mesh   atomic.Pointer[[]string] // roots in the served version
}

// Certify waits until the port has a certificate of the mesh's CA, which is at once if a
// sealed file has one that lasts. Without Serving it does nothing. Open comes after it.
func (s *Settings) Certify(ctx context.Context, p *process.Process, data string) error {
	v := &s.Serving
	if v.CA == "" {
		return nil
	}
	key, err := s.SealKey()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(data, 0o700); err != nil {
		return process.DataError(fmt.Errorf("data directory: %w", err))
	}
	log := p.Log.With(process.Component, "frontend")
	saved := certificates.SealedFile{Path: filepath.Join(data, servingFile), Key: key}
	i := &issued{file: v.Roots}
	i.mesh.Store(new([]string))
	i.keeper = certificates.New(certificates.Config{
		Issuer: &caclient.Client{Address: v.CA, ServerName: v.ServerName, Roots: i.roots}, Tokens: &certificates.JoinFile{Path: v.JoinTokenFile},
		TTL: v.TTL, Saved: saved, Log: log,
	})
	i.restore(saved, log)
	p.Admin.Ready("serving certificate", i.keeper.Ready)
	p.Admin.Warn("serving certificate", func() error { return errors.Join(i.keeper.Late(), i.keeper.Trouble()) })
	if err := i.first(ctx); err != nil {
		return err
	}
	v.issued, s.TLS.Issued = i, i.certificate
	return nil
}

// restore takes the certificate of an earlier process.
func (i *issued) restore(saved certificates.SealedFile, log *slog.Logger) {
	switch id, err := saved.Load(time.Now()); {
	case err != nil:
		log.Warn("cannot use the saved certificate; asking for one with the join token", "error", err)
	case id != nil:
		i.keeper.Restore(id)
	}
}

// first waits until there is a certificate.
func (i *issued) first(ctx context.Context) error {
	if now, _ := i.keeper.Current(); now != nil {
		return nil
	}
	asking, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = i.keeper.Run(asking) // it ends because of stop or ctx, and Wait says which
	}()
	_, err := i.keeper.Wait(ctx)
	stop()
	<-ended
	return err
}

// certificate returns the current certificate: there is one once Certify has returned.
func (i *issued) certificate() *tls.Certificate {
	now, _ := i.keeper.Current()
	return &now.Certificate
}

// roots returns the CAs of the CA's own port: those of the file, those of the mesh, and
// that of the certificate, under which the CA signs.
func (i *issued) roots() (*x509.CertPool, error) {
	pool, err := readRoots(i.file)
	now, _ := i.keeper.Current()
	if now == nil {
		return pool, err
	}
	pool.AddCert(now.Root) // the file was good when it was needed
	for _, root := range *i.mesh.Load() {
		pool.AppendCertsFromPEM([]byte(root))
	}
	return pool, nil
}

// follow notices new roots of the mesh, until ctx is done: the CA may sign under another
// one (CA-8).
func (i *issued) follow(ctx context.Context, roots func() []string) error {
	tick := time.NewTicker(rootsLook)
	defer tick.Stop()
	for {
		now, before := roots(), *i.mesh.Load()
		if len(now) > 0 && !slices.Equal(now, before) {
			i.mesh.Store(&now)
			if len(before) > 0 {
				i.keeper.RootsChanged()
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
