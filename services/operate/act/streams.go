package act

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"meshlog.dev/services/builder/streams"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/operate/command"
)

// Streams returns the command `streams`.
func Streams() *cobra.Command {
	cmd := &cobra.Command{
		Use: "streams", Short: "Show or correct the settings of the bus's streams", Args: command.Args(0, 0, ""),
		Long: `Show the settings of the bus's streams that differ from what builders give them.

A builder creates missing streams, and never changes existing ones. To change how
long the log is kept, how large it grows, or how many servers keep it, give this
command the flags of the builder, with --apply; then start the builders with the
same flags.

Only the administrator of the bus may use --apply: give the key with --bus-nkey
DIR/admin.nk. With --data it is found.

To keep less, change the builders first: they refuse streams that keep less than
they promise. A shorter history deletes older records and versions.`,
		Example: `  meshlog streams --data data/
  meshlog streams --bus nats://nats-0:4222 --replicas 3 --history 192h
  meshlog streams --bus nats://nats-0:4222 --replicas 3 --history 192h --apply --bus-nkey auth/admin.nk`,
	}
	w := wanted{given: cmd.Flags().Changed}
	f := cmd.Flags()
	f.IntVar(&w.replicas, "replicas", 0, "how many servers keep the streams: 1, or 3 on a cluster (default as it is)")
	f.DurationVar(&w.history, "history", 0, "how long log and versions are kept (default as it is)")
	f.Int64Var(&w.logMiB, "log-mib", 0, "how many `MiB` the log may grow to (default as it is)")
	f.DurationVar(&w.auditHistory, "audit-history", 0, "how long the audit is kept (default as it is)")
	f.Int64Var(&w.auditMiB, "audit-mib", 0, "how many `MiB` the audit may grow to (default as it is)")
	apply := f.Bool("apply", false, "change the settings that differ")
	return command.Live(cmd, func(ctx context.Context, e *command.Env, _ []string) error {
		if err := w.check(); err != nil {
			return err
		}
		if *apply {
			e.AsAdmin()
		}
		nc, err := e.Conn()
		if err != nil {
			return err
		}
		states, err := w.compare(ctx, nc, e.Bus.Domain)
		if err != nil {
			return err
		}
		if *apply {
			for _, s := range states {
				if len(s.Differences) == 0 {
					continue
				}
				if err := s.Apply(ctx, nc); err != nil {
					return err
				}
			}
		}
		e.Print(states, func() { showStreams(states, *apply, e.Output) })
		return nil
	})
}

// wanted is the settings that the flags give; settings without a flag stay.
type wanted struct {
	given                 func(flag string) bool
	replicas              int
	history, auditHistory time.Duration
	logMiB, auditMiB      int64
}

func (w *wanted) check() error {
	switch {
	case w.given("replicas") && w.replicas != 1 && w.replicas != 3:
		return command.Usage("--replicas %d: want 1 or 3", w.replicas)
	case w.given("history") && w.history < time.Hour:
		return command.Usage("--history %s: want an hour at least", w.history)
	case w.given("log-mib") && w.logMiB < 1:
		return command.Usage("--log-mib %d: want 1 at least", w.logMiB)
	case w.given("audit-history") && w.auditHistory < time.Hour:
		return command.Usage("--audit-history %s: want an hour at least", w.auditHistory)
	case w.given("audit-mib") && w.auditMiB < 1:
		return command.Usage("--audit-mib %d: want 1 at least", w.auditMiB)
	}
	return nil
}

// compare returns how each stream differs from the wanted settings.
func (w *wanted) compare(ctx context.Context, nc *bus.Conn, domain string) ([]bus.StreamState, error) {
	is, err := bus.CompareStreams(ctx, nc, streams.All(domain, streams.Sizes{Replicas: 1})...)
	if err != nil {
		return nil, err
	}
	history := w.history
	if !w.given("history") {
		history = streams.History(is)
	}
	var all []bus.StreamConfig
	for i, s := range is {
		// LogBytes and AuditBytes are of the one stream that is taken from All.
		sizes := streams.Sizes{
			Replicas: s.Is.Replicas, History: history, LogBytes: s.Is.MaxBytes, AuditHistory: s.Is.MaxAge, AuditBytes: s.Is.MaxBytes,
		}
		if w.given("replicas") {
			sizes.Replicas = w.replicas
		}
		if w.given("log-mib") {
			sizes.LogBytes = w.logMiB << 20
		}
		if w.given("audit-history") {
			sizes.AuditHistory = w.auditHistory
		}
		if w.given("audit-mib") {
			sizes.AuditBytes = w.auditMiB << 20
		}
		all = append(all, streams.All(domain, sizes)[i])
	}
	return bus.CompareStreams(ctx, nc, all...)
}

func showStreams(states []bus.StreamState, applied bool, out *command.Output) {
	t := command.Rows{Head: []string{"STREAM", "SETTING", "IS", "SHOULD BE"}}
	if applied {
		t.Head = []string{"STREAM", "SETTING", "WAS", "IS"}
	}
	for _, s := range states {
		if s.Missing && !applied {
			t.Add(s.Name, "", "missing", "there; a builder creates it when it starts")
		}
		for _, d := range s.Differences {
			t.Add(s.Name, d.Setting, d.Is, d.Wants)
		}
	}
	switch {
	case t.Len() > 0:
		out.Rows(&t)
		if !applied {
			out.Line("--apply changes them.")
		}
	case applied:
		out.Line("There was nothing to change.")
	default:
		out.Line("All %d streams are as they should be.", len(states))
	}
}
