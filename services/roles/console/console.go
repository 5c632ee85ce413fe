// Package console runs the web console of a mesh. It reads the log, the version chain and the
// reports of the fleet. It writes only what its pages confirm, with the key of an operator.
package console

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"

	"meshlog.dev/services/console/mirror"
	"meshlog.dev/services/console/record"
	"meshlog.dev/services/console/watch"
	"meshlog.dev/services/console/web"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/logcopy"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/store"
	"meshlog.dev/store/bolt"
)

// Settings of the console. The flags' texts describe them.
type Settings struct {
	Listen    string // empty: there is no console
	TokenFile string
	CopyMiB   int           // of the copy of the log
	History   time.Duration // of the copy
	// OperatorKey is the file with the key that signs acts; empty: the console only reads.
	OperatorKey string
	// EnvoyAdmin are networks and addresses of Envoys' admin interfaces.
	EnvoyAdmin []string
}

// DefaultSettings are the defaults of the flags.
func DefaultSettings() *Settings {
	return &Settings{Listen: "127.0.0.1:15016", CopyMiB: 1024, History: 7 * 24 * time.Hour, EnvoyAdmin: []string{"loopback"}}
}

// Flags binds the settings.
func (s *Settings) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&s.Listen, "console-listen", s.Listen, "`address` of the web console, over HTTP; empty: none. It is open to this machine. "+
		"Set it to 0.0.0.0:15016, with --console-token-file, to open it to others, behind a proxy with TLS")
	fs.StringVar(&s.TokenFile, "console-token-file", s.TokenFile, "`file` with the token that opens the console to other machines, read for each request that brings one. "+
		"Set it so that people can read the console from their own machines")
	fs.IntVar(&s.CopyMiB, "console-copy-mib", s.CopyMiB, "most `MiB` of records and checkpoints in the console's own copy of the log; the oldest go first. "+
		"Raise it so that the console shows more of a large log")
	fs.DurationVar(&s.History, "console-history", s.History, "`time` for which the console's own copy keeps records and versions, of these the newest 5000. "+
		"Set it to that of the log, --history of the builders, if that is longer")
	fs.StringVar(&s.OperatorKey, command.OperatorKeyFlag, s.OperatorKey, "`file` with the key of an operator, as meshlog bus-auth --operator writes it: "+
		"the console signs with it what is done there. Set it so that people on the machine of the console can approve, roll back, freeze and pin; without it the console only reads")
	fs.StringSliceVar(&s.EnvoyAdmin, "console-envoy-admin", s.EnvoyAdmin, "`address` of Envoys' admin interfaces, or several, that the console may ask for a config_dump: IP:PORT, IP, a network, or loopback. "+
		"Set it if Envoys on other machines can be reached; empty: it asks none")
}

// Role returns the role on the bus: one that only reads, unless acts are signed.
func (s *Settings) Role() bus.Role {
	if s.OperatorKey != "" {
		return bus.Operator()
	}
	return bus.Console()
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
	return errors.Join(process.Positive("console-copy-mib", s.CopyMiB), process.Positive("console-history", s.History), err)
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
// the bus is away, too: from its copy in the data directory, and what it read before, marked as
// old. Without a data directory it has no copy, and records nothing.
func (s *Settings) Run(ctx context.Context, domain, data string, l net.Listener, connect func(context.Context) (*bus.Conn, error), p *process.Process) error {
	log := p.Log.With(process.Component, "console")
	server, err := web.New(s.TokenFile, log)
	if err != nil {
		return err
	}
	kept, err := s.keep(data, log)
	if err != nil {
		return errors.Join(process.DataError(err), l.Close())
	}
	defer kept.close()
	w := watch.New(kept.mirror, kept.recorder, log)
	if err := w.Restore(ctx); err != nil {
		return err
	}
	server.Watch = w
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
	p.Admin.Ready("console", server.Ready)
	p.Admin.Warn("console", server.Away)
	p.Admin.Register(metrics(w)...)
	stage := process.Stage{
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
			live, err := bus.Retry(ctx, log, func(ctx context.Context) (*watch.Live, error) { return w.Open(ctx, target) })
			if err != nil {
				return err
			}
			defer target.Close()
			server.Show(live)
			return live.Run(ctx)
		},
	}
	if kept.recorder != nil {
		stage = append(stage, kept.recorder.Run)
	}
	return process.RunStages(ctx, stage)
}

// kept is what the console keeps in its data directory; without one, nothing.
type kept struct {
	mirror   *mirror.Mirror
	recorder *record.Recorder
	log      *slog.Logger
}

func (s *Settings) keep(data string, log *slog.Logger) (k kept, err error) {
	k.log = log
	if data == "" {
		log.Warn("the console keeps no copy and records nothing: without the bus it shows what it has read before; give --data")
		return k, nil
	}
	if k.mirror, err = s.mirror(data, log); err != nil {
		return k, err
	}
	if k.recorder, err = record.Open(data, log); err != nil {
		return k, errors.Join(err, k.mirror.Close())
	}
	return k, nil
}

// keptVersions is how many versions the copy has at most, the latest included.
const keptVersions = 5000

// mirror opens the copy in a data directory, or begins one.
func (s *Settings) mirror(data string, log *slog.Logger) (*mirror.Mirror, error) {
	versionsFile, logFile := process.VersionsFile(data, "console"), process.LogFile(data)
	if err := os.MkdirAll(filepath.Dir(versionsFile), 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	records, damage, err := logcopy.Open(logFile, logcopy.Limits{Bytes: int64(s.CopyMiB) << 20, Age: s.History})
	if err != nil {
		return nil, err
	}
	if damage != nil {
		log.Warn("the console copies the log again", "file", logFile, "reason", damage)
	}
	versions, damaged, err := bolt.Open(versionsFile, store.Retention{Versions: keptVersions, Age: s.History})
	if err != nil {
		return nil, errors.Join(err, records.Close())
	}
	if damaged != nil {
		log.Warn("the console copies the versions again", "file", versionsFile, "reason", damaged)
	}
	return mirror.New(records, versions, log), nil
}

func (k *kept) close() {
	if k.mirror == nil {
		return
	}
	if err := errors.Join(k.recorder.Close(), k.mirror.Close()); err != nil {
		k.log.Warn("files of the console cannot be closed", "error", err)
	}
}
