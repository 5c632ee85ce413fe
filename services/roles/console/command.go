package console

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/pflag"

	"meshlog.dev/services/internal/process"
)

// settings are those of a process of its own.
type settings struct {
	process.Bus
	Data string // empty: no copy, no records
	*Settings
}

// Flags binds the settings.
func (s *settings) Flags(fs *pflag.FlagSet) {
	s.Bus.Flags(fs)
	fs.StringVar(&s.Data, "data", s.Data, "data `directory`, for the console's own copy of log and versions and for what it records; empty: none. "+
		"Set it so that the console shows the past without the bus, and how fast versions reach proxies")
	s.Settings.Flags(fs)
}

// Check returns all errors of the settings.
func (s *settings) Check() error {
	var listen error
	if s.Listen == "" {
		listen = process.Invalid("console-listen", "is empty: give HOST:PORT")
	}
	return errors.Join(s.Bus.Check(), s.Settings.Check(), listen)
}

// Spec returns the process `meshlog console`; path is its command line.
func Spec(path string) process.Spec {
	s := &settings{Bus: process.DefaultBus(), Settings: DefaultSettings()}
	return process.Spec{
		Use: "console", Path: path, Short: "Run the web console of a mesh", Settings: s,
		Long: `Run the web console of a mesh that runs elsewhere: pages that show its health, its
versions over time, what each version changed, each object with its history, each proxy
with its resources and why it has them, its sources and its problems. "meshlog up" has
one on the same address.

The console only reads, and so does its key on the bus, console.nk, which
"meshlog bus-auth --console" writes. Given the key of an operator, and operator.nk as its
key on the bus, people on its machine can approve, roll back, freeze and pin, each after a
page that shows what would change. With --data it keeps a copy of log and versions, and
shows the past from it while the bus is away; and it records how versions reach proxies.`,
		Example: `  meshlog console --bus data/bus
  meshlog console --bus nats://127.0.0.1:4222 --bus-nkey auth/console.nk \
    --data /var/lib/meshlog/console --console-listen 0.0.0.0:15016 --console-token-file token
  meshlog console --bus data/bus --operator-key auth/operator-alice.pem`,
		Verify: func(context.Context, io.Writer) error { return errors.Join(s.Bus.Verify(), process.VerifyData(s.Data)) },
		Run: func(ctx context.Context, p *process.Process) error {
			l, err := s.Open(p.Log)
			if err != nil {
				return err
			}
			return s.Run(ctx, s.Domain, s.Data, l, s.Connect(s.Role(), p), p)
		},
	}
}
