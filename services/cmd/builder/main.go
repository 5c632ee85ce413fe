// Builder turns the log into versions. Any number of them may run: one leads,
// the others follow it, compare every version and take over.
package main

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/spf13/pflag"

	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/internal/up/builderup"
)

type settings struct {
	process.Bus
	Data     string        // holds builder/versions.db; another for each builder
	Replicas int           // how many servers of the bus keep the streams: 1 or 3
	History  time.Duration // how long the log and the versions are kept
	LogMiB   int64         // how large the log may grow; the bus sets that aside
}

func (s *settings) Flags(fs *pflag.FlagSet) {
	s.Bus.Flags(fs)
	fs.StringVar(&s.Data, "data", "", "data `directory`, another for each builder; made where it is missing")
	fs.IntVar(&s.Replicas, "replicas", 1, "how many servers of the bus keep the streams: 1, or 3 on a cluster")
	fs.DurationVar(&s.History, "history", builderup.DefaultHistory, "how long the log and the versions are kept")
	fs.Int64Var(&s.LogMiB, "log-mib", builderup.DefaultLogBytes>>20, "how many `MiB` the log may grow to, which the bus sets aside")
}

func (s *settings) Check() error {
	var err error
	if s.Replicas != 1 && s.Replicas != 3 || s.History < time.Hour || s.LogMiB < 1 {
		err = errors.New("--replicas, --history, --log-mib: want 1 or 3, an hour at least, a MiB at least")
	}
	return errors.Join(process.CheckData(s.Data), s.Bus.Check(), err)
}

func main() {
	s := &settings{Bus: process.DefaultBus()}
	os.Exit(process.Main(process.Command(process.Spec{
		Use: "builder", Short: "Turns the log into versions", Settings: s,
		Long:    "Folds the log and publishes versions of the world. Any number may run: one leads, the others take over.",
		Example: "  builder --bus nats://127.0.0.1:4222 --bus-token-file token --data /var/lib/meshlog/builder-1 --id builder-1",
		Run: func(ctx context.Context, p *process.Process) error {
			return builderup.Run(ctx, builderup.Options{
				Domain: s.Domain, ID: s.ID, Data: s.Data, Process: p,
				Replicas: s.Replicas, History: s.History, LogBytes: s.LogMiB << 20,
				Connect: s.Connect(bus.Builder(), p),
			})
		},
	})))
}
