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
	"meshlog.dev/services/internal/seal"
)

// Settings are the addresses, certificates and limits of a frontend.
type Settings struct {
	Listen    string // without TLS; empty: none. The default counts only without TLS
	TLSListen string // with TLS, if TLS has a certificate
	TLS       certificates.Files
	// Serving has the mesh's CA issue the certificate of TLSListen; without it TLS has it.
	Serving Serving
	// MeshClients: proxies need a certificate of the mesh's CA, or of TLS.ClientCA.
	MeshClients bool
	// SealKeyFile has the key of the sealed files; empty: private keys are in memory only.
	SealKeyFile string
	Limits      frontend.Limits
	// MCPListen is the address for MCP-over-xDS; empty: it is not served. It has the
	// certificate of the xDS port, if that has one.
	MCPListen string
	// MCPClientCA is the file with the CAs of its clients; empty: they need no certificate.
	MCPClientCA string

	// flags are of the commands that have the settings: a process has several. None:
	// the fields were set otherwise.
	flags []*pflag.FlagSet
}

// DefaultSettings are the defaults of the flags.
func DefaultSettings() Settings {
	return Settings{Listen: "127.0.0.1:15010", TLSListen: "127.0.0.1:15012", Limits: frontend.DefaultLimits()}
}

// Flags defines the flags of the settings.
func (s *Settings) Flags(fs *pflag.FlagSet) {
	s.flags = append(s.flags, fs)
	fs.StringVar(&s.Listen, "listen", s.Listen, "`address` for xDS over gRPC without TLS; empty: none. With --tls-cert there is none unless this is set. "+
		"Set it to 0.0.0.0:15010 to let in proxies of other machines, if the network can be trusted: a proxy on it can claim to be any other one")
	fs.StringVar(&s.TLSListen, "tls-listen", s.TLSListen, "`address` for xDS over gRPC with TLS, once --tls-cert is given. "+
		"Set it to 0.0.0.0:15012 to let in proxies of other machines")
	fs.StringVar(&s.TLS.Cert, "tls-cert", s.TLS.Cert, "PEM `file` with the certificate of the xDS port and its chain, read again when it changes. "+
		"Give it, with --tls-key, to serve xDS over TLS")
	fs.StringVar(&s.TLS.Key, "tls-key", s.TLS.Key, "PEM `file` with the key of --tls-cert")
	fs.StringVar(&s.TLS.ClientCA, "tls-client-ca", s.TLS.ClientCA, "PEM `file` with the CAs that sign proxies' certificates, read again when it changes. "+
		"Give it to let in, over TLS, only proxies with such a certificate; a proxy whose certificate has an Istio identity (spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/ACCOUNT) must be in that namespace and account")
	fs.BoolVar(&s.MeshClients, "tls-mesh-clients", s.MeshClients, "let in, over TLS, only proxies with a certificate of the mesh's CA, or of --tls-client-ca; the roots are those that the CA publishes, and follow their rotation. "+
		"Set it if proxies get their certificates from the CA of this mesh, as meshlog agent does")
	fs.StringVar(&s.MCPListen, "mcp-listen", s.MCPListen, "`address` for MCP-over-xDS, with TLS if xDS has a certificate: clients such as an istiod read Istio's objects and the services of registries. A client needs an entry of mcp.sinks in the MeshPolicy. "+
		"Set it to 0.0.0.0:15013 so that istiods have this mesh in their configSources")
	fs.StringVar(&s.MCPClientCA, "mcp-client-ca", s.MCPClientCA, "PEM `file` with the CAs that sign the certificates of clients of MCP-over-xDS, read again when it changes. An istiod shows no certificate. "+
		"Give it to let in only clients with such a certificate")
	fs.StringVar(&s.SealKeyFile, "seal-key-file", s.SealKeyFile, "`file` with 32 random bytes or more, which must not be on the disk of --data: a systemd credential, a secret of a TPM, a mounted Secret. Read at the start. "+
		"Set it so that the frontend keeps private keys in sealed files, in DATA/keys, and has them after a restart while all other processes are down; without it they are in memory only")
	l := &s.Limits
	fs.IntVar(&l.StreamsPerSecond, "streams-per-second", l.StreamsPerSecond, "new streams that begin in a second, and at once; more wait, or are refused and retry. "+
		"Lower it to keep processor time for connected proxies when many connect at once")
	fs.IntVar(&l.StreamsPerAddress, "streams-per-address", l.StreamsPerAddress, "streams, and connections, that the clients behind one address may have, an IPv4 address or a /64 of IPv6; 0: no limit. "+
		"Raise it if more proxies share an address: behind NAT, or behind a load balancer that does not keep their addresses")
	fs.IntVar(&l.StreamsPerIdentity, "streams-per-identity", l.StreamsPerIdentity, "streams that the clients with one identity in their certificates may have; 0: no limit. "+
		"Raise it if a service account has more pods at one frontend")
	fs.IntVar(&l.Classes, "classes", l.Classes, "classes of proxies for which resources are kept, counted for each type of resource; proxies that would need more are refused, those of one address or identity above a tenth; 0: no limit. "+
		"Raise it if meshlog_frontend_resident_classes comes near it and the proxies are yours")
	fs.IntVar(&l.FirstAnswers, "first-answers", l.FirstAnswers, "new streams in their first responses at a time; more wait, or are refused and retry. "+
		"If higher, a change reaches connected proxies later when many connect at once")
	fs.DurationVar(&l.SendTimeout, "send-timeout", l.SendTimeout, "`time` that a client may take to accept a response; then its stream ends. "+
		"Raise it for slow networks")
	fs.DurationVar(&l.MaxAge, "max-stream-age", l.MaxAge, "`time` after which a stream ends, give or take a tenth, so that clients spread over all frontends again; 0: never. "+
		"Lower it to spread clients sooner after frontends were added")
	fs.DurationVar(&l.Drain, "drain", l.Drain, "`time` over which streams end, one after the other, when the process stops. "+
		"Raise it to spare the frontends that the clients go to; stopping takes that long")
	fs.DurationVar(&l.Linger, "linger", l.Linger, "`time` that a removed cluster stays with a proxy, for requests that are under way. "+
		"It must be longer than the longest delay that a filter (ext_authz, fault) may cause")
}

// plain returns the address for xDS without TLS; empty: none. With TLS, a port that
// asks for no certificate must be asked for.
func (s *Settings) plain() string {
	asked := len(s.flags) == 0 || slices.ContainsFunc(s.flags, func(fs *pflag.FlagSet) bool { return fs.Changed("listen") })
	if s.hasTLS() && !asked {
		return ""
	}
	return s.Listen
}

// hasTLS reports whether xDS is served over TLS.
func (s *Settings) hasTLS() bool {
	return s.TLS.Cert != "" || s.Serving.CA != "" || len(s.Serving.Names) > 0
}

// Check returns an error for each setting that makes no sense.
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
	case !s.hasTLS() && s.TLS.ClientCA != "":
		errs = append(errs, process.Invalid("tls-cert", "is missing: proxies show certificates over TLS only; give --tls-cert and --tls-key, too"))
	case !s.hasTLS() && s.MeshClients:
		errs = append(errs, process.Invalid("tls-cert", "is missing: proxies show certificates over TLS only; give --tls-cert and --tls-key, too"))
	case !s.hasTLS() && s.Listen == "":
		errs = append(errs, process.Invalid("listen", "is empty, and there is no --tls-cert: give an address, or a certificate for --tls-listen"))
	}
	if s.MCPListen != "" {
		address("mcp-listen", s.MCPListen)
	}
	switch {
	case s.MCPClientCA != "" && s.MCPListen == "":
		errs = append(errs, process.Invalid("mcp-client-ca", "has no effect without --mcp-listen"))
	case s.MCPClientCA != "" && !s.hasTLS():
		errs = append(errs, process.Invalid("tls-cert", "is missing: clients of MCP-over-xDS show certificates over TLS only; give --tls-cert and --tls-key, too"))
	}
	errs = append(errs, s.checkServing())
	l := s.Limits
	errs = append(errs,
		process.Positive("streams-per-second", l.StreamsPerSecond), process.Positive("first-answers", l.FirstAnswers),
		process.Positive("send-timeout", l.SendTimeout), process.Positive("drain", l.Drain), process.Positive("linger", l.Linger),
	)
	for name, limit := range map[string]int{"streams-per-address": l.StreamsPerAddress, "streams-per-identity": l.StreamsPerIdentity, "classes": l.Classes} {
		if limit < 0 {
			errs = append(errs, process.Invalid(name, "want a number, or 0 for no limit"))
		}
	}
	if l.MaxAge < 0 {
		errs = append(errs, process.Invalid("max-stream-age", "want a time, or 0 for streams that do not age"))
	}
	return errors.Join(errs...)
}

// Verify returns an error if the files that the settings name cannot be used.
func (s *Settings) Verify() error {
	_, sealed := s.SealKey()
	if s.Serving.CA != "" {
		return errors.Join(sealed, s.Serving.verify())
	}
	if s.TLS.Cert == "" {
		return sealed
	}
	var sinks error
	if s.MCPClientCA != "" {
		sinks = verifyFiles("mcp-client-ca", s.sinkFiles())
	}
	return errors.Join(verifyFiles("tls-cert", s.TLS), sinks, sealed)
}

// verifyFiles returns an error if the files of a port cannot be used.
func verifyFiles(flag string, files certificates.Files) error {
	certs, err := certificates.Load(files)
	if err == nil {
		err = certs.Trouble()
	}
	if err != nil {
		return process.Invalid(flag, "%w", err)
	}
	return nil
}

// sinkFiles returns the files of the port for MCP-over-xDS, which has the certificate of the xDS
// port.
func (s *Settings) sinkFiles() certificates.Files {
	f := s.TLS
	f.ClientCA = s.MCPClientCA
	return f
}

// SealKey reads the key of the sealed files; nil: none is set.
func (s *Settings) SealKey() (*seal.Key, error) {
	if s.SealKeyFile == "" {
		return nil, nil
	}
	k, err := seal.ReadKey(s.SealKeyFile)
	if err != nil {
		return nil, process.Invalid("seal-key-file", "%w", err)
	}
	return k, nil
}

// Open listens on the addresses. The caller closes the ports. With Serving, Certify has
// been called.
func (s *Settings) Open() (*Ports, error) {
	p := &Ports{MeshClients: s.MeshClients, issued: s.Serving.issued}
	var err error
	if s.hasTLS() {
		if p.Certificates, err = certificates.Load(s.TLS); err != nil {
			return nil, fmt.Errorf("TLS for xDS: %w", err)
		}
		if p.TLS, err = listen("tls-listen", s.TLSListen); err != nil {
			return nil, err
		}
	}
	if s.MCPListen != "" {
		if err := s.openSinks(p); err != nil {
			p.Close()
			return nil, err
		}
	}
	if at := s.plain(); at != "" {
		if p.Plain, err = listen("listen", at); err != nil {
			p.Close()
			return nil, err
		}
	}
	return p, nil
}

// openSinks listens for MCP-over-xDS.
func (s *Settings) openSinks(p *Ports) (err error) {
	if s.hasTLS() {
		if p.SinkCertificates, err = certificates.Load(s.sinkFiles()); err != nil {
			return fmt.Errorf("TLS for MCP-over-xDS: %w", err)
		}
	}
	p.Sinks, err = listen("mcp-listen", s.MCPListen)
	return err
}

func listen(flag, addr string) ([]net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("xDS: %w; give another address with --%s", err, flag)
	}
	return []net.Listener{l}, nil
}

// Ports are the listeners for xDS, and for MCP-over-xDS.
type Ports struct {
	Plain, TLS   []net.Listener
	Certificates *certificates.Certificates // of the TLS listeners; nil: none
	Sinks        []net.Listener
	// SinkCertificates are those of Sinks; nil: they are without TLS.
	SinkCertificates *certificates.Certificates
	MeshClients      bool    // as in Settings
	issued           *issued // nil: files have the certificate
}

// Close closes all listeners.
func (p *Ports) Close() {
	for _, l := range slices.Concat(p.Plain, p.TLS, p.Sinks) {
		l.Close()
	}
}

// Attrs returns the addresses, for a log line.
func (p *Ports) Attrs() (attrs []any) {
	for _, l := range p.Plain {
		attrs = append(attrs, "xds", l.Addr().String())
	}
	for _, l := range p.TLS {
		attrs = append(attrs, "xds-tls", l.Addr().String())
	}
	for _, l := range p.Sinks {
		attrs = append(attrs, "mcp", l.Addr().String())
	}
	return attrs
}

// certificatesStage adds the metrics and the page of the certificates, and
// returns what reads them again until ctx is done.
func (p *Ports) certificatesStage(o *Options, log *slog.Logger) func(context.Context) error {
	admin := o.Process.Admin
	admin.Register(p.Certificates.Metrics("meshlog_frontend")...)
	admin.Page("certificates", "the certificates in use, when they expire, and problems with their files", func(w http.ResponseWriter, r *http.Request) {
		if process.Params(w, r) != nil {
			process.WriteJSON(w, p.Certificates.Report())
		}
	})
	admin.Warn("certificates", p.Certificates.Trouble)
	return func(ctx context.Context) error { return p.Certificates.Run(ctx, log) }
}
