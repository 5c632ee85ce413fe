// Frontend serves Envoys from its own replica of the published versions. It
// starts without a bus, and serves on without one.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/spf13/pflag"

	"meshlog.dev/services/frontend"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/internal/up/frontendup"
)

type settings struct {
	process.Bus        // without a URL it serves what its file has
	Data        string // holds frontend/versions.db; another for each frontend
	Listen      string // xDS over gRPC
	Limits      frontend.Limits
}

func (s *settings) Flags(fs *pflag.FlagSet) {
	s.Bus.Flags(fs)
	fs.StringVar(&s.Data, "data", "", "data `directory`, another for each frontend; made where it is missing")
	fs.StringVar(&s.Listen, "listen", "127.0.0.1:15010", "`address` for xDS over gRPC, without TLS")
	l := &s.Limits
	fs.IntVar(&l.StreamsPerSecond, "streams-per-second", l.StreamsPerSecond, "new streams taken in a second, and at once; more wait or are refused")
	fs.IntVar(&l.FirstAnswers, "first-answers", l.FirstAnswers, "new streams served their first answers at a time; more wait or are refused")
	fs.DurationVar(&l.SendTimeout, "send-timeout", l.SendTimeout, "a client that takes longer to take a response loses its stream")
	fs.DurationVar(&l.MaxAge, "max-stream-age", l.MaxAge, "streams end at this age, give or take a tenth, so that clients spread again; 0: never")
	fs.DurationVar(&l.Drain, "drain", l.Drain, "time over which streams end when the process is stopped")
	fs.DurationVar(&l.Linger, "linger", l.Linger, "a removed cluster stays with a proxy for this long; longer than any delay of a filter")
}

func (s *settings) Check() error {
	err := errors.Join(process.CheckData(s.Data), s.checkLimits())
	if s.URL == "" && s.ID != "" { // no bus: the file will do
		return err
	}
	return errors.Join(err, s.Bus.Check())
}

func (s *settings) checkLimits() error {
	if err := s.Limits.Check(); err != nil {
		return fmt.Errorf("limits: %w", err)
	}
	return nil
}

func main() {
	s := &settings{Bus: process.DefaultBus(), Limits: frontend.DefaultLimits()}
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
		Connect: s.Connect(bus.Frontend(), p), Limits: s.Limits, Process: p,
	})
}
