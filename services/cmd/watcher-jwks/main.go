// Watcher-jwks publishes the public keys of token issuers to the log.
package main

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/roles/jwks"
	"meshlog.dev/services/roles/watcher"
)

type settings struct {
	process.Bus
	JWKS    jwks.Settings
	Watcher watcher.Settings
}

func (s *settings) Flags(fs *pflag.FlagSet) {
	s.Bus.Flags(fs)
	s.JWKS.Flags(fs)
	s.Watcher.Flags(fs)
}

func (s *settings) Check() error {
	return errors.Join(s.Bus.Check(), s.JWKS.Check(), s.Watcher.Check())
}

func main() { os.Exit(process.Main(command())) }

func command() *cobra.Command {
	s := &settings{Bus: process.DefaultBus(), JWKS: jwks.DefaultSettings(), Watcher: watcher.DefaultSettings()}
	return process.Command(process.Spec{
		Use: "watcher-jwks", Short: "Publish the public keys of token issuers", Settings: s,
		Long: `Fetch the public keys (JWKS) of the token issuers that RequestAuthentications name,
by https, and publish them to the log. Builders say which issuers those are.
A fetch that fails changes nothing. A second watcher is a standby.`,
		Example: "  watcher-jwks --bus nats://127.0.0.1:4222 --bus-nkey auth/watcher-jwks-default.nk --id watcher-jwks-1",
		Verify:  func(context.Context, io.Writer) error { return errors.Join(s.Bus.Verify(), s.JWKS.Verify()) },
		Run: func(ctx context.Context, p *process.Process) error {
			return s.JWKS.Run(ctx, jwks.Options{
				Domain: s.Domain, Holder: s.ID, Connect: s.Connect(bus.Watcher(jwks.Shard), p), Process: p, LogShare: s.Watcher.LogShare,
			})
		},
	})
}
