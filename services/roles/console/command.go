package console

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/pflag"

	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
)

// settings are those of a process of its own.
type settings struct {
	process.Bus
	*Settings
}

// Flags binds the settings.
func (s *settings) Flags(fs *pflag.FlagSet) {
	s.Bus.Flags(fs)
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

The console only reads, unless it is given the key of an operator: then people on its
machine can approve, roll back, freeze and pin, each after a page that shows what would
change. It has the key operator.nk on the bus, because that may read the log, the versions
and the reports, and write what operators do.`,
		Example: `  meshlog console --bus data/bus
  meshlog console --bus nats://127.0.0.1:4222 --bus-nkey auth/operator.nk \
    --console-listen 0.0.0.0:15016 --console-token-file token
  meshlog console --bus data/bus --operator-key auth/operator-alice.pem`,
		Verify: func(context.Context, io.Writer) error { return s.Bus.Verify() },
		Run: func(ctx context.Context, p *process.Process) error {
			l, err := s.Open(p.Log)
			if err != nil {
				return err
			}
			return s.Run(ctx, s.Domain, l, s.Connect(bus.Operator(), p), p)
		},
	}
}
