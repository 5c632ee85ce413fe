// Package mcpxds runs the watcher of a source of MCP-over-xDS, for watcher-xds and for
// roles/sources.
package mcpxds

import (
	"context"
	"errors"
	"net"
	"net/url"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/roles/watcher"
	"meshlog.dev/services/watcher/mcpxds"
	"meshlog.dev/services/watcher/registry"
)

// Settings name a source. The flags' texts describe them.
type Settings struct {
	Source      string // xds://host:port
	Instance    string
	Namespace   string
	Revision    watcher.Revision
	Incremental bool
	MeshConfig  bool
	TLS         string
	Files       mcpxds.TLS // without Mode
}

// DefaultSettings returns the defaults.
func DefaultSettings() Settings {
	return Settings{Namespace: "istio-system", TLS: string(mcpxds.Disable)}
}

// Flags binds the settings.
func (s *Settings) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&s.Source, "mcp-source", s.Source, "`address` of a source of MCP-over-xDS to watch, as xds://HOST:PORT: istiod, Higress or slime")
	fs.BoolVar(&s.Incremental, "mcp-incremental", s.Incremental, "take an answer of the source as a change, not as the whole set, and an object without a body as deleted. "+
		"Set it for slime with MCP_INC_PUSH")
	fs.StringVar(&s.TLS, "mcp-tls", s.TLS, "TLS `mode` of the connection to the source: DISABLE, SIMPLE (the source shows a certificate) or MUTUAL (the watcher shows one, too, as a current istiod wants)")
	fs.StringVar(&s.Files.CA, "mcp-ca", s.Files.CA, "PEM `file` with the CAs of the source's certificate, read for each connection. "+
		"Set it if this machine does not already trust the certificate")
	fs.StringVar(&s.Files.Certificate, "mcp-cert", s.Files.Certificate, "PEM `file` with the watcher's certificate for MUTUAL, read for each connection")
	fs.StringVar(&s.Files.Key, "mcp-key", s.Files.Key, "PEM `file` with the key of --mcp-cert")
	fs.StringVar(&s.Files.ServerName, "mcp-server-name", s.Files.ServerName, "`name` in the source's certificate; the default is the host of --mcp-source. "+
		"Set it if the certificate has another name, such as istiod.istio-system.svc")
	fs.StringVar(&s.Instance, "instance", s.Instance, "unique `name` of the source: watchers with the same name publish as one source. The default is HOST-PORT. "+
		"Set it to see the source under a name of its own")
	fs.StringVar(&s.Namespace, "mcp-namespace", s.Namespace, "`namespace` that the source is told as the watcher's. "+
		"Change it if the source decides by it what it sends")
	s.Revision.Flags(fs)
	fs.BoolVar(&s.MeshConfig, "mcp-mesh-config", s.MeshConfig, "ask the source for its MeshConfig too. "+
		"Set it if sourceRules of the MeshPolicy let the source publish it; otherwise it is forbidden")
}

// Check returns all errors of the settings.
func (s *Settings) Check() error {
	if s.Source == "" {
		return process.Invalid("mcp-source", "is missing: give the address of the source, xds://HOST:PORT")
	}
	errs := []error{s.Revision.Check()}
	if _, err := s.address(); err != nil {
		errs = append(errs, err)
	}
	if bad := validation.IsDNS1123Label(s.Namespace); len(bad) > 0 {
		errs = append(errs, process.Invalid("mcp-namespace", "%q is not the name of a namespace: %s", s.Namespace, bad[0]))
	}
	unused := func(why string, files ...[2]string) {
		for _, f := range files {
			if f[1] != "" {
				errs = append(errs, process.Invalid(f[0], "has no effect with --mcp-tls %s%s", s.TLS, why))
			}
		}
	}
	own := [][2]string{{"mcp-cert", s.Files.Certificate}, {"mcp-key", s.Files.Key}}
	switch mcpxds.Mode(s.TLS) {
	case mcpxds.Disable:
		unused(": set SIMPLE or MUTUAL", append(own, [2]string{"mcp-ca", s.Files.CA}, [2]string{"mcp-server-name", s.Files.ServerName})...)
	case mcpxds.Simple:
		unused(": set MUTUAL", own...)
	case mcpxds.Mutual:
		for _, f := range own {
			if f[1] == "" {
				errs = append(errs, process.Invalid(f[0], "is missing: MUTUAL needs the watcher's certificate and its key"))
			}
		}
	case "ISTIO_MUTUAL":
		errs = append(errs, process.Invalid("mcp-tls", "ISTIO_MUTUAL is not supported: name the files of the certificate, with MUTUAL"))
	default:
		errs = append(errs, process.Invalid("mcp-tls", "want DISABLE, SIMPLE or MUTUAL"))
	}
	return errors.Join(errs...)
}

// address returns host:port of the source.
func (s *Settings) address() (string, error) {
	u, err := url.Parse(s.Source)
	if err != nil || u.Scheme != "xds" || u.Hostname() == "" || u.Port() == "" || u.Path != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return "", process.Invalid("mcp-source", "%q: want xds://HOST:PORT", s.Source)
	}
	return net.JoinHostPort(u.Hostname(), u.Port()), nil
}

// Verify checks the files that the settings name. It does not contact the source.
func (s *Settings) Verify() error {
	if s.Source == "" {
		return nil
	}
	if err := s.files().Verify(); err != nil {
		return process.Invalid("mcp-tls", "%w", err)
	}
	return nil
}

func (s *Settings) files() mcpxds.TLS {
	t := s.Files
	t.Mode = mcpxds.Mode(s.TLS)
	return t
}

// Shard returns the shard of the source.
func (s *Settings) Shard() ident.Shard {
	instance := s.Instance
	if instance == "" {
		address, _ := s.address()
		instance = strings.NewReplacer(":", "-", "[", "", "]", "").Replace(address)
	}
	return ident.Shard{Source: mcpxds.Source, Instance: instance}
}

// Run watches until ctx is done.
func (s *Settings) Run(ctx context.Context, at watcher.Place) error {
	address, err := s.address()
	if err != nil {
		return err
	}
	shard := s.Shard()
	metrics, status := mcpxds.NewMetrics(shard.Instance), registry.NewStatus(shard)
	at.Process.Admin.Register(metrics)
	defer at.Process.Admin.Unregister(metrics)
	return at.Run(ctx, shard, address, mcpxds.New(mcpxds.Config{
		Address: address, TLS: s.files(), ID: at.Holder, Namespace: s.Namespace, Revision: s.Revision.Name,
		Incremental: s.Incremental, MeshConfig: s.MeshConfig, Metrics: metrics, Status: status,
	}), status)
}
