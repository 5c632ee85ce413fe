// Frontend serves Envoys from its own replica of the published versions. It
// starts without a bus, and serves on without one.
package main

import (
	"context"
	"errors"
	"net"
	"os"

	"github.com/spf13/pflag"

	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/internal/up/frontendup"
)

type settings struct {
	process.Bus        // without a URL it serves what its file has
	Data        string // holds frontend/versions.db; another for each frontend
	Listen      string // xDS over gRPC
}

func (s *settings) Flags(fs *pflag.FlagSet) {
	s.Bus.Flags(fs)
	fs.StringVar(&s.Data, "data", "", "data `directory`, another for each frontend; made where it is missing")
	fs.StringVar(&s.Listen, "listen", "127.0.0.1:15010", "`address` for xDS over gRPC, without TLS")
}

func (s *settings) Check() error {
	if s.URL == "" && s.ID != "" { // no bus: the file will do
		return process.CheckData(s.Data)
	}
	return errors.Join(process.CheckData(s.Data), s.Bus.Check())
}

func main() {
	s := &settings{Bus: process.DefaultBus()}
	os.Exit(process.Main(process.Command(process.Spec{
		Use: "frontend", Short: "Serves Envoys over xDS", Settings: s,
		Long:    "Serves Envoys from its own replica of the published versions; without --bus, what that has.",
		Example: "  frontend --bus nats://127.0.0.1:4222 --bus-token-file token --data /var/lib/meshlog/frontend-1 --id frontend-1",
		Run:     func(ctx context.Context, p *process.Process) error { return run(ctx, p, s) },
	})))
}

func run(ctx context.Context, p *process.Process, s *settings) error {
	xds, err := frontendup.Listen(s.Listen)
	if err != nil {
		return err
	}
	defer xds.Close()
	p.Log.Info("listening", "xds", xds.Addr().String(), "data", s.Data, "bus", s.URL)
	return frontendup.Run(ctx, frontendup.Options{
		Domain: s.Domain, ID: s.ID, Data: s.Data, Listeners: []net.Listener{xds},
		Connect: s.Connect("frontend", p), Process: p,
	})
}
