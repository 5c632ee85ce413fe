package frontend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"

	"github.com/spf13/pflag"

	"meshlog.dev/services/frontend"
	"meshlog.dev/services/internal/certificates"
	"meshlog.dev/services/internal/process"
)

// Settings are those of a frontend: where it takes xDS, and within which
// limits.
type Settings struct {
	Listen    string // without TLS; empty: nowhere
	TLSListen string // with TLS, if there is a certificate
	TLS       certificates.Files
	Limits    frontend.Limits
}

// DefaultSettings are those of a frontend that was told nothing.
func DefaultSettings() Settings {
	return Settings{Listen: "127.0.0.1:15010", TLSListen: "127.0.0.1:15012", Limits: frontend.DefaultLimits()}
}

// Flags binds the settings.
func (s *Settings) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&s.Listen, "listen", s.Listen, "`address` for xDS over gRPC without TLS; empty: none. "+
		"Change it to let in proxies of other machines (0.0.0.0:15010) where the network can be trusted")
	fs.StringVar(&s.TLSListen, "tls-listen", s.TLSListen, "`address` for xDS over gRPC with TLS, once --tls-cert is given. "+
		"Change it to let in proxies of other machines (0.0.0.0:15012)")
	fs.StringVar(&s.TLS.Cert, "tls-cert", s.TLS.Cert, "PEM `file` with the certificate of the xDS port and its chain, read again when it changes. "+
		"Give it, with --tls-key, to serve xDS over TLS")
	fs.StringVar(&s.TLS.Key, "tls-key", s.TLS.Key, "PEM `file` with the key of --tls-cert")
	fs.StringVar(&s.TLS.ClientCA, "tls-client-ca", s.TLS.ClientCA, "PEM `file` with whom to trust as signers of proxies' certificates, read again when it changes. "+
		"Give it to let in, over TLS, only proxies with such a certificate; one with an identity of Istio's form (spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/ACCOUNT) may then only be of that namespace and account")
	l := &s.Limits
	fs.IntVar(&l.StreamsPerSecond, "streams-per-second", l.StreamsPerSecond, "new streams taken in a second, and at once; more wait, or are refused and come again. "+
		"Less saves processor time for those that are served already when many come at once")
	fs.IntVar(&l.FirstAnswers, "first-answers", l.FirstAnswers, "new streams at their first answers at a time; more wait, or are refused and come again. "+
		"More, and a change reaches those that are served already later when many come at once")
	fs.DurationVar(&l.SendTimeout, "send-timeout", l.SendTimeout, "`time` that a client may take to take a response; then its stream ends. "+
		"More suits slow lines")
	fs.DurationVar(&l.MaxAge, "max-stream-age", l.MaxAge, "`time` after which a stream ends, give or take a tenth, so that clients spread over all frontends again; 0: never. "+
		"Less spreads them sooner after frontends were added")
	fs.DurationVar(&l.Drain, "drain", l.Drain, "`time` over which streams are ended, one after the other, when the process is stopped. "+
		"More spares the frontends that clients go to; whoever stops the process has to wait as long")
	fs.DurationVar(&l.Linger, "linger", l.Linger, "`time` that a removed cluster stays with a proxy, for requests that are under way to it. "+
		"It has to be longer than the longest delay that a filter (ext_authz, fault) may cause")
}

// Check says what makes no sense.
func (s *Settings) Check() error {
	var errs []error
	address := func(name, value string) {
		if _, _, err := net.SplitHostPort(value); err != nil {
			errs = append(errs, process.Invalid(name, "want HOST:PORT"))
		}
	}
	if s.Listen != "" {
		address("listen", s.Listen)
	}
	address("tls-listen", s.TLSListen)
	switch {
	case s.TLS.Cert == "" && s.TLS.Key != "":
		errs = append(errs, process.Invalid("tls-cert", "is missing: give the certificate of --tls-key, too"))
	case s.TLS.Cert != "" && s.TLS.Key == "":
		errs = append(errs, process.Invalid("tls-key", "is missing: give the key of --tls-cert, too"))
	case s.TLS.Cert == "" && s.TLS.ClientCA != "":
		errs = append(errs, process.Invalid("tls-cert", "is missing: proxies show certificates over TLS only; give --tls-cert and --tls-key, too"))
	case s.TLS.Cert == "" && s.Listen == "":
		errs = append(errs, process.Invalid("listen", "is empty, and there is no --tls-cert: give an address, or a certificate for --tls-listen"))
	}
	l := s.Limits
	errs = append(errs,
		process.Positive("streams-per-second", l.StreamsPerSecond), process.Positive("first-answers", l.FirstAnswers),
		process.Positive("send-timeout", l.SendTimeout), process.Positive("drain", l.Drain), process.Positive("linger", l.Linger),
	)
	if l.MaxAge < 0 {
		errs = append(errs, process.Invalid("max-stream-age", "want a time, or 0 for streams that do not age"))
	}
	return errors.Join(errs...)
}

// Verify says what is wrong with the files that the settings name.
func (s *Settings) Verify() error {
	if s.TLS.Cert == "" {
		return nil
	}
	certs, err := certificates.Load(s.TLS)
	if err == nil {
		err = certs.Trouble()
	}
	if err != nil {
		return process.Invalid("tls-cert", "%w", err)
	}
	return nil
}

// Open listens as the settings say. The caller closes the ports.
func (s *Settings) Open() (*Ports, error) {
	p := new(Ports)
	var err error
	if s.TLS.Cert != "" {
		if p.Certificates, err = certificates.Load(s.TLS); err != nil {
			return nil, fmt.Errorf("TLS for xDS: %w", err)
		}
		if p.TLS, err = listen("tls-listen", s.TLSListen); err != nil {
			return nil, err
		}
	}
	if s.Listen != "" {
		if p.Plain, err = listen("listen", s.Listen); err != nil {
			p.Close()
			return nil, err
		}
	}
	return p, nil
}

func listen(flag, addr string) ([]net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("xDS: %w; give another address with --%s", err, flag)
	}
	return []net.Listener{l}, nil
}

// Ports take xDS.
type Ports struct {
	Plain, TLS   []net.Listener
	Certificates *certificates.Certificates // of TLS; nil: there is none
}

// Close closes all of them.
func (p *Ports) Close() {
	for _, l := range slices.Concat(p.Plain, p.TLS) {
		l.Close()
	}
}

// Attrs are where the ports are, for a log line.
func (p *Ports) Attrs() (attrs []any) {
	for _, l := range p.Plain {
		attrs = append(attrs, "xds", l.Addr().String())
	}
	for _, l := range p.TLS {
		attrs = append(attrs, "xds-tls", l.Addr().String())
	}
	return attrs
}

// look after the certificates until ctx is done.
func (p *Ports) certificatesStage(o *Options, log *slog.Logger) func(context.Context) error {
	admin := o.Process.Admin
	admin.Register(p.Certificates.Metrics("meshlog_frontend")...)
	admin.Page("certificates", "which certificates are in use, until when, and what is wrong with their files", func(w http.ResponseWriter, r *http.Request) {
		if process.Params(w, r) != nil {
			process.WriteJSON(w, p.Certificates.Report())
		}
	})
	admin.Warn("certificates", p.Certificates.Trouble)
	return func(ctx context.Context) error { return p.Certificates.Run(ctx, log) }
}
