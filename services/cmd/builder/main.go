// Builder builds versions from the log. Any number of builders may run: one leads,
// the standbys compare every version and take over.
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
	"meshlog.dev/services/roles/builder"
)

type settings struct {
	process.Bus
	builder.Settings
	Data     string // holds builder/versions.db; each builder has its own
	Replicas int    // number of servers of the bus that store the streams: 1 or 3
}

func (s *settings) Flags(fs *pflag.FlagSet) {
	s.Bus.Flags(fs)
	fs.StringVar(&s.Data, "data", "", "data `directory` of this builder alone, created if it is missing. It is a cache: if its files are lost, the builder starts from the bus")
	fs.IntVar(&s.Replicas, "replicas", 1, "number of `servers` of the bus that store the streams: 1, or 3 on a cluster. "+
		"Set it to 3 on a cluster, which then loses no data when a server dies")
	s.Settings.Flags(fs)
}

func (s *settings) Check() error {
	var replicas error
	if s.Replicas != 1 && s.Replicas != 3 {
		replicas = process.Invalid("replicas", "want 1, or 3 on a cluster")
	}
	return errors.Join(s.Bus.Check(), process.CheckData(s.Data), replicas, s.Settings.Check())
}

func main() { os.Exit(process.Main(command())) }

func command() *cobra.Command {
	s := &settings{Bus: process.DefaultBus(), Settings: builder.DefaultSettings()}
	return process.Command(process.Spec{
		Use: "builder", Short: "Build versions from the log", Settings: s,
		Long:    "Fold the log and publish versions of the world. Any number of builders may run: one leads, and the standbys take over.",
		Example: "  builder --bus nats://127.0.0.1:4222 --bus-nkey auth/builder.nk --data /var/lib/meshlog/builder-1 --id builder-1",
		Verify: func(context.Context, io.Writer) error {
			return errors.Join(s.Bus.Verify(), process.VerifyData(s.Data))
		},
		Run: func(ctx context.Context, p *process.Process) error {
			return builder.Run(ctx, builder.Options{
				Domain: s.Domain, ID: s.ID, Data: s.Data, Process: p,
				Replicas: s.Replicas, Settings: s.Settings, Connect: s.Connect(bus.Builder(), p),
			})
		},
	})
}
