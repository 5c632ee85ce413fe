// Package up is all of meshlog in one process: the one wiring function.
//
//	DIR ──> watcher/file ──> log ──> builder ──> version chain ──> frontend ──> Envoys
//	        policy ────────>  └──────────── embedded bus ──┘
//
// Each role has its own connection to the bus, its own file and its own
// reports, as if it were alone; builderup, frontendup and watcherup put them
// together for `up` and for the separate processes alike.
package up

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/spf13/pflag"

	"meshlog.dev/events"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/model"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/internal/up/builderup"
	"meshlog.dev/services/internal/up/frontendup"
	"meshlog.dev/services/internal/up/watcherup"
	"meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/file"
)

// Settings of `meshlog up`.
type Settings struct {
	// Config is the directory of YAML that is watched, subdirectories
	// included.
	Config string
	// Data is the data directory, made where it is missing: nats/ is the bus,
	// builder/ and frontend/ hold a file each, bus says where the bus is.
	Data string
	// BusListen is where the bus listens, for the CLI and for processes of
	// their own; port 0 takes a free one.
	BusListen string
	Frontend  frontendup.Settings
	Builder   builderup.Settings
}

// DefaultSettings lack Config and Data.
func DefaultSettings() *Settings {
	return &Settings{BusListen: "127.0.0.1:0", Frontend: frontendup.DefaultSettings(), Builder: builderup.DefaultSettings()}
}

// Flags binds the settings.
func (s *Settings) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&s.Config, "config", s.Config, "`directory` of YAML to watch, subdirectories included")
	fs.StringVar(&s.Data, "data", s.Data, "data `directory`, made where it is missing: it holds the log and all that was published. Keep it")
	fs.StringVar(&s.BusListen, "bus-listen", s.BusListen, "`address` of the bus, for the command line and other processes; port 0 takes a free one, which DATA/bus tells. "+
		"Change it where processes of other machines join")
	s.Frontend.Flags(fs)
	s.Builder.Flags(fs)
}

// Check says what is missing.
func (s *Settings) Check() error {
	return errors.Join(process.CheckConfig(s.Config), process.CheckData(s.Data), s.Frontend.Check(), s.Builder.Check())
}

// Verify says what is wrong with what the settings name, and writes to w what
// there is to say about documents.
func (s *Settings) Verify(ctx context.Context, w io.Writer) error {
	return errors.Join(watcherup.VerifyDirectory(ctx, s.Config, w), process.VerifyData(s.Data), s.Frontend.Verify())
}

// id names each role of the process: there is one of each on a data directory.
const id = "up"

// Run is `meshlog up`.
func Run(ctx context.Context, p *process.Process, s *Settings) error {
	// Listen first: a port in use is said before anything is touched.
	ports, err := s.Frontend.Open()
	if err != nil {
		return err
	}
	defer ports.Close()

	// The bus: a NATS server in this process, on DATA/nats. The last to end.
	if err := free(s.BusListen); err != nil {
		return err
	}
	server, err := bus.StartServer(bus.ServerOptions{Dir: s.Data, Listen: s.BusListen, Log: p.Log.With(process.Component, "bus")})
	if err != nil {
		return process.DataError(err)
	}
	defer server.Close()
	connect := func(name string) func(context.Context) (*bus.Conn, error) {
		return func(context.Context) (*bus.Conn, error) {
			return bus.Connect(bus.ConnectOptions{Server: server, Name: name, Log: p.Log.With(process.Component, "bus", "connection", name)})
		}
	}

	// What is watched: the directory, and the policy that requires both. A
	// broken file keeps only itself from being served.
	files := events.Shard{Source: "file", Instance: "default"}
	own := events.Shard{Source: model.DefaultsSource, Instance: "default"}
	policy, err := newPolicySource(
		&configv1.RequiredSource{Source: files.Source, Instance: files.Instance, AcceptPartial: true},
		&configv1.RequiredSource{Source: own.Source, Instance: own.Instance},
	)
	if err != nil {
		return err
	}
	watch := func(shard events.Shard, w watcher.Watcher) func(context.Context) error {
		return func(ctx context.Context) error {
			return watcherup.Run(ctx, watcherup.Options{
				Domain: process.DefaultDomain, Shard: shard, Holder: id, Watcher: w,
				Connect: connect("watcher " + shard.String()), Process: p,
			})
		}
	}

	p.Log.Info("up", append(ports.Attrs(), "config", s.Config, "data", s.Data, "bus", server.URL())...)
	return process.RunStages(ctx,
		// version chain -> frontend -> Envoys. It drains first: while its
		// streams end, everything behind it is still there.
		process.Stage{func(ctx context.Context) error {
			return frontendup.Run(ctx, frontendup.Options{
				Domain: process.DefaultDomain, ID: id, Data: s.Data, Ports: ports,
				Connect: connect("frontend"), Limits: s.Frontend.Limits, Process: p,
			})
		}},
		// log -> builder -> version chain. The leader, and the only one.
		process.Stage{func(ctx context.Context) error {
			return builderup.Run(ctx, builderup.Options{
				Domain: process.DefaultDomain, ID: id, Data: s.Data, Replicas: 1,
				History: s.Builder.History, LogBytes: s.Builder.LogMiB << 20,
				Connect: connect("builder"), Process: p,
			})
		}},
		// sources -> watchers -> log.
		process.Stage{watch(files, file.New(s.Config)), watch(own, policy)},
	)
}

// free says that nobody else listens where the bus will.
func free(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("bus: %w; give another address with --bus-listen", err)
	}
	return l.Close()
}
