package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// Settings are the settings of one process: a struct with a comment for each
// field, whose values before Flags are the defaults.
type Settings interface {
	// Flags binds the fields to flags.
	Flags(fs *pflag.FlagSet)
	// Check says what is missing or makes no sense.
	Check() error
}

// Spec describes a process.
type Spec struct {
	Use, Short, Long, Example string
	// Path is how the process is called, where Use does not say all of it.
	Path     string
	Settings Settings
	// Run does the process's work until ctx is done, and then ends in order.
	Run func(ctx context.Context, p *Process) error
}

// Process is what a running process has.
type Process struct {
	Build string
	Log   *slog.Logger
	Admin *Admin
}

// common are the settings of every process.
type common struct {
	settings string // path of the settings file
	admin    string // listen address of the admin server
	logLevel string
	logForm  string
}

// DefaultAdmin is where the admin server of a process listens.
const DefaultAdmin = "127.0.0.1:15014"

func (c *common) flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.settings, settingsFlag, "", "settings `file`: YAML, names of flags to values")
	fs.StringVar(&c.admin, "admin", DefaultAdmin, "`address` for health, metrics and debug; port 0 takes a free one")
	fs.StringVar(&c.logLevel, "log-level", "info", "least `level` that is logged: debug, info, warn or error")
	fs.StringVar(&c.logForm, "log-format", "auto", "text, json, or auto: text on a terminal")
}

// Command makes the command that runs a process.
func Command(spec Spec) *cobra.Command {
	var c common
	cmd := &cobra.Command{
		Use: spec.Use, Short: spec.Short, Long: spec.Long, Example: spec.Example, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := ApplySettings(cmd.Flags(), os.LookupEnv); err != nil {
				return err
			}
			if err := spec.Settings.Check(); err != nil {
				return &UsageError{err}
			}
			log, err := newLogger(cmd.ErrOrStderr(), c)
			if err != nil {
				return &UsageError{err}
			}
			return run(cmd.Context(), spec, c, log)
		},
	}
	c.flags(cmd.Flags())
	spec.Settings.Flags(cmd.Flags())
	cmd.AddCommand(healthCommand(spec))
	cmd.CompletionOptions.HiddenDefaultCmd = true
	return cmd
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return &UsageError{fmt.Errorf("unexpected argument %q: settings are flags", args[0])}
}

// run runs the process and its admin server.
func run(ctx context.Context, spec Spec, c common, log *slog.Logger) error {
	build, err := Build()
	if err != nil {
		return err
	}
	admin, err := NewAdmin(c.admin)
	if err != nil {
		return err
	}
	log.Info("started", "build", build, "admin", admin.Addr())
	err = RunStages(ctx,
		Stage{func(ctx context.Context) error { return spec.Run(ctx, &Process{Build: build, Log: log, Admin: admin}) }},
		// Last, so that the end can be watched.
		Stage{func(ctx context.Context) error { return admin.Run(ctx, log) }},
	)
	log.Info("ended", "error", err)
	return err
}

func newLogger(w io.Writer, c common) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.logLevel)); err != nil {
		return nil, fmt.Errorf("--log-level %q: want debug, info, warn or error", c.logLevel)
	}
	f, isFile := w.(*os.File)
	o := &slog.HandlerOptions{Level: level}
	switch form := c.logForm; {
	case form == "text", form == "auto" && isFile && term.IsTerminal(int(f.Fd())):
		return slog.New(slog.NewTextHandler(w, o)), nil
	case form == "json", form == "auto":
		return slog.New(slog.NewJSONHandler(w, o)), nil
	}
	return nil, fmt.Errorf("--log-format %q: want text, json or auto", c.logForm)
}

// untilSignal is ctx until the process is told to end.
func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills
	return ctx, stop
}

// Main runs a command until it ends or the process is told to, and returns the
// exit code.
func Main(cmd *cobra.Command) int {
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &UsageError{err} })
	ctx, stop := untilSignal(context.Background())
	defer stop()
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(os.Stderr, "%s: %s\n", cmd.Name(), strings.ReplaceAll(err.Error(), "\n", "\n  "))
	if errors.As(err, new(*UsageError)) {
		fmt.Fprintf(os.Stderr, "Run '%s --help' for usage.\n", cmd.Name())
		return 2
	}
	var coded interface{ ExitCode() int }
	if errors.As(err, &coded) {
		return coded.ExitCode()
	}
	return 1
}
