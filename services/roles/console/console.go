// Package console runs the web console of a mesh. It reads the log, the version chain and the
// reports of the fleet. It writes only what its pages confirm, with the key of an operator.
package console

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"

	"github.com/spf13/pflag"

	"meshlog.dev/services/console/watch"
	"meshlog.dev/services/console/web"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/operate/command"
)

// Settings of the console. The flags' texts describe them.
type Settings struct {
	Listen    string // empty: there is no console
	TokenFile string
	// OperatorKey is the file with the key that signs acts; empty: the console only reads.
	OperatorKey string
	// EnvoyAdmin are networks and addresses of Envoys' admin interfaces.
	EnvoyAdmin []string
}

// DefaultSettings are the defaults of the flags.
func DefaultSettings() *Settings {
	return &Settings{Listen: "127.0.0.1:15016", EnvoyAdmin: []string{"loopback"}}
}

// Flags binds the settings.
func (s *Settings) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&s.Listen, "console-listen", s.Listen, "`address` of the web console, over HTTP; empty: none. It is open to this machine. "+
		"Set it to 0.0.0.0:15016, with --console-token-file, to open it to others, behind a proxy with TLS")
	fs.StringVar(&s.TokenFile, "console-token-file", s.TokenFile, "`file` with the token that opens the console to other machines, read for each request that brings one. "+
		"Set it so that people can read the console from their own machines")
	fs.StringVar(&s.OperatorKey, command.OperatorKeyFlag, s.OperatorKey, "`file` with the key of an operator, as meshlog bus-auth --operator writes it: "+
		"the console signs with it what is done there. Set it so that people on the machine of the console can approve, roll back, freeze and pin; without it the console only reads")
	fs.StringSliceVar(&s.EnvoyAdmin, "console-envoy-admin", s.EnvoyAdmin, "`address` of Envoys' admin interfaces, or several, that the console may ask for a config_dump: IP:PORT, IP, a network, or loopback. "+
		"Set it if Envoys on other machines can be reached; empty: it asks none")
}

// Check returns all errors of the settings.
func (s *Settings) Check() error {
	if s.Listen == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(s.Listen); err != nil {
		return process.Invalid("console-listen", "%q: want HOST:PORT", s.Listen)
	}
	if s.OperatorKey != "" {
		if _, err := command.ReadOperatorKey(s.OperatorKey); err != nil {
			return process.Invalid(command.OperatorKeyFlag, "%w", err)
		}
	}
	_, err := s.adminRules()
	return err
}

func (s *Settings) adminRules() (rules []web.AdminRule, err error) {
	for _, a := range s.EnvoyAdmin {
		r, err := web.ParseAdminRules(a)
		if err != nil {
			return nil, process.Invalid("console-envoy-admin", "%w", err)
		}
		rules = append(rules, r...)
	}
	return rules, nil
}

// Open listens, so that a port in use is reported before anything else begins, and logs the
// address. It returns nil without an address.
func (s *Settings) Open(log *slog.Logger) (net.Listener, error) {
	if s.Listen == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", s.Listen)
	if err != nil {
		return nil, fmt.Errorf("console: %w; give another address with --console-listen, or an empty one for none", err)
	}
	log.Info("console", "url", "http://"+l.Addr().String()+"/")
	return l, nil
}

// Run serves the console of a domain until ctx is done, and closes the listener. It serves while
// the bus is away, too: what it read before stays, marked as old.
func (s *Settings) Run(ctx context.Context, domain string, l net.Listener, connect func(context.Context) (*bus.Conn, error), p *process.Process) error {
	log := p.Log.With(process.Component, "console")
	server, err := web.New(s.TokenFile, log)
	if err != nil {
		return err
	}
	server.OperatorKey = s.OperatorKey
	if server.EnvoyAdmin, err = s.adminRules(); err != nil {
		return err
	}
	var conn atomic.Pointer[bus.Conn]
	server.Away = func() error {
		if nc := conn.Load(); nc != nil {
			return bus.Ready(nc)
		}
		return bus.ErrNotConnected
	}
	p.Admin.Warn("console", server.Away)
	return process.RunStages(ctx, process.Stage{
		func(ctx context.Context) error { return server.Serve(ctx, l) },
		func(ctx context.Context) error {
			nc, err := connect(ctx)
			if err != nil {
				return err
			}
			defer nc.Close()
			conn.Store(nc)
			p.Admin.Register(bus.ConnMetrics("console", nc)...)
			target := command.On(nc, domain)
			mesh, err := bus.Retry(ctx, log, func(ctx context.Context) (*watch.Mesh, error) { return watch.Open(ctx, target, log) })
			if err != nil {
				return err
			}
			defer target.Close()
			server.Show(mesh)
			return mesh.Run(ctx)
		},
	})
}
