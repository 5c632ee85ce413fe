package cli

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/roles/builder"
	"meshlog.dev/store/natsfeed"
)

// streamFlags are the settings of streams that a command is told; what is not
// told is wanted as it is.
type streamFlags struct {
	cmd      *cobra.Command
	replicas int
	history  time.Duration
	logMiB   int64
}

func streamsCommand() *cobra.Command {
	var apply bool
	cmd := &cobra.Command{
		Use: "streams", Short: "Shows which settings of the bus's streams are not as they should be, or changes them", Args: args(0, 0, ""),
		Long: `Shows which settings of the bus's streams are not as they should be.

A builder makes the streams where they are missing, and changes none that is
there. To change how long the log is kept, how large it grows, or how many
servers keep it, give here the flags that builders are given, with --apply; then
start the builders with the same.

Where less is to be kept, builders come first: they do not work on streams that
keep less than they promise. What is older than a shorter history is dropped.`,
		Example: `  meshlog streams --data data/
  meshlog streams --bus nats://nats-0:4222 --replicas 3 --history 192h
  meshlog streams --bus nats://nats-0:4222 --replicas 3 --history 192h --apply`,
	}
	t := targetFlags(cmd)
	format := outputFlag(cmd)
	f := streamFlags{cmd: cmd}
	cmd.Flags().IntVar(&f.replicas, "replicas", 0, "how many servers keep the streams: 1, or 3 on a cluster (default as it is)")
	cmd.Flags().DurationVar(&f.history, "history", 0, "how long log and versions are kept (default as it is)")
	cmd.Flags().Int64Var(&f.logMiB, "log-mib", 0, "how many `MiB` the log may grow to (default as it is)")
	cmd.Flags().BoolVar(&apply, "apply", false, "change what is not as it should be")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		defer func() { err = errors.Join(err, t.close()) }()
		out, err := newOutput(cmd, *format)
		if err != nil {
			return err
		}
		if err := f.check(); err != nil {
			return err
		}
		nc, err := t.connect()
		if err != nil {
			return err
		}
		states, err := f.compare(cmd.Context(), nc, t.bus.Domain)
		if err != nil {
			return err
		}
		if !apply {
			return out.print(states, func() error { return showStreams(states, out) })
		}
		for _, s := range states {
			if len(s.Differences) == 0 {
				continue
			}
			if err := s.Apply(cmd.Context(), nc); err != nil {
				return err
			}
		}
		return out.print(states, func() error { return showApplied(states, out) })
	}
	return cmd
}

func (f *streamFlags) check() error {
	given := f.cmd.Flags().Changed
	switch {
	case given("replicas") && f.replicas != 1 && f.replicas != 3:
		return usage("--replicas %d: want 1 or 3", f.replicas)
	case given("history") && f.history < time.Hour:
		return usage("--history %s: want an hour at least", f.history)
	case given("log-mib") && f.logMiB < 1:
		return usage("--log-mib %d: want 1 at least", f.logMiB)
	}
	return nil
}

// compare looks at the streams beside what is wanted of them.
func (f *streamFlags) compare(ctx context.Context, nc *bus.Conn, domain string) ([]bus.StreamState, error) {
	is, err := bus.CompareStreams(ctx, nc, builder.Streams(domain, 1, 0, 0)...)
	if err != nil {
		return nil, err
	}
	given := f.cmd.Flags().Changed
	// The history as it is, is that of the versions: the log is kept for longer.
	history := f.history
	if !given("history") {
		i := slices.IndexFunc(is, func(s bus.StreamState) bool { return s.Name == natsfeed.Stream })
		history = cmp.Or(is[i].Is.MaxAge, builder.DefaultHistory)
	}
	var wanted []bus.StreamConfig
	for i, s := range is {
		replicas, logBytes := s.Is.Replicas, s.Is.MaxBytes
		if given("replicas") {
			replicas = f.replicas
		}
		if given("log-mib") {
			logBytes = f.logMiB << 20
		}
		wanted = append(wanted, builder.Streams(domain, replicas, history, logBytes)[i])
	}
	return bus.CompareStreams(ctx, nc, wanted...)
}

func showStreams(states []bus.StreamState, out *output) error {
	t := table{head: []string{"STREAM", "SETTING", "IS", "SHOULD BE"}}
	for _, s := range states {
		if s.Missing {
			t.add(s.Name, "", "missing", "there; a builder makes it when it starts")
		}
		for _, d := range s.Differences {
			t.add(s.Name, d.Setting, d.Is, d.Wants)
		}
	}
	if len(t.rows) == 0 {
		return out.line("All %d streams are as they should be.", len(states))
	}
	if err := out.table(&t, true); err != nil {
		return err
	}
	return out.line("With --apply they are changed.")
}

func showApplied(states []bus.StreamState, out *output) error {
	t := table{head: []string{"STREAM", "SETTING", "WAS", "IS"}}
	for _, s := range states {
		for _, d := range s.Differences {
			t.add(s.Name, d.Setting, d.Is, d.Wants)
		}
	}
	if len(t.rows) == 0 {
		return out.line("There was nothing to change.")
	}
	return out.table(&t, true)
}
