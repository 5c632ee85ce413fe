// Frontend serves Envoys from its own replica of the published versions. It needs
// no bus to start or to keep serving.
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
	"meshlog.dev/services/roles/frontend"
)

type settings struct {
	process.Bus // without a URL the frontend serves the versions in its file
	frontend.Settings
	Exchange frontend.KeyExchange
	Data     string // holds frontend/versions.db; each frontend has its own
}

func (s *settings) Flags(fs *pflag.FlagSet) {
	s.Bus.Flags(fs)
	fs.StringVar(&s.Data, "data", "", "data `directory` of this frontend alone, created if it is missing. The frontend serves from it while all other processes are down: keep it over restarts")
	s.Settings.Flags(fs)
	s.ServingFlags(fs)
	s.Exchange.Flags(fs)
}

func (s *settings) Check() error {
	var bus error
	if s.URL != "" || s.ID == "" { // without a bus only the file matters
		bus = s.Bus.Check()
	}
	return errors.Join(bus, process.CheckData(s.Data), s.Settings.Check(), s.Exchange.Check())
}

func main() { os.Exit(process.Main(command())) }

func command() *cobra.Command {
	s := &settings{Bus: process.DefaultBus(), Settings: frontend.DefaultSettings(), Exchange: frontend.DefaultKeyExchange()}
	return process.Command(process.Spec{
		Use: "frontend", Short: "Serve Envoys over xDS", Settings: s,
		Long:    "Serve Envoys from a replica of the published versions. Without --bus the replica does not change.",
		Example: "  frontend --bus nats://127.0.0.1:4222 --bus-nkey auth/frontend.nk --data /var/lib/meshlog/frontend-1 --id frontend-1",
		Verify: func(context.Context, io.Writer) error {
			return errors.Join(s.Bus.Verify(), process.VerifyData(s.Data), s.Settings.Verify(), s.Exchange.Verify())
		},
		Run: func(ctx context.Context, p *process.Process) error { return run(ctx, p, s) },
	})
}

func run(ctx context.Context, p *process.Process, s *settings) error {
	keys, err := s.Exchange.Keys(&s.Settings)
	if err != nil {
		return err
	}
	if err := s.Certify(ctx, p, s.Data); err != nil {
		return err
	}
	ports, err := s.Open()
	if err != nil {
		return err
	}
	defer ports.Close()
	p.Log.Info("listening", append(ports.Attrs(), "data", s.Data, "bus", process.Redacted(s.URL))...)
	return frontend.Run(ctx, frontend.Options{
		Domain: s.Domain, ID: s.ID, Data: s.Data, Ports: ports,
		Connect: s.Connect(bus.Frontend(), p), Keys: keys, Limits: s.Limits, Process: p,
	})
}
