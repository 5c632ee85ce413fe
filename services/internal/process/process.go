package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	oteltrace "go.opentelemetry.io/otel/trace"

	"meshlog.dev/services/nearest"
)

// Settings is a struct with the settings of a process. Its values before Flags are
// the defaults.
type Settings interface {
	// Flags binds the fields to flags. A flag's text is its manual in --help and in
	// the settings file: what it is, its unit, and why to change it.
	Flags(fs *pflag.FlagSet)
	// Check returns all errors of the values, made by Invalid if they concern one
	// setting. It reads no files.
	Check() error
}

// Spec describes a process.
type Spec struct {
	Use, Short, Long, Example string
	// Path is the command line of the process if it is longer than Use.
	Path     string
	Settings Settings
	// Verify checks what the settings name, for --check. It returns everything that
	// would prevent the process from working, writes warnings to w and starts
	// nothing. It may be nil.
	Verify func(ctx context.Context, w io.Writer) error
	// Run does the process's work until ctx is done, and then stops in order.
	Run func(ctx context.Context, p *Process) error
}

// Process gives Spec.Run access to the parts that all processes share.
type Process struct {
	Build string
	Log   *slog.Logger
	Admin *Admin
	// Traces provides tracers; it is nil if traces are off.
	Traces oteltrace.TracerProvider
}

// Command returns the command that runs a process.
func Command(spec Spec) *cobra.Command {
	c := defaultCommon()
	cmd := &cobra.Command{
		Use: spec.Use, Short: spec.Short, Long: spec.Long, Example: spec.Example, Args: noArgs,
		// RunE reports all errors together, so nothing may fail before it.
		PersistentPreRunE: func(*cobra.Command, []string) error { return nil },
		RunE: func(cmd *cobra.Command, _ []string) error {
			misspelt, others := unknownVariables(cmd.Flags(), os.Environ())
			err := ApplySettings(cmd.Flags(), os.LookupEnv)
			err = errors.Join(err, located(errors.Join(spec.Settings.Check(), c.check()), cmd.Flags()))
			if c.checkOnly {
				return verify(cmd, spec, err, append(misspelt, others...))
			}
			if err != nil {
				return &UsageError{err}
			}
			log := newLogger(cmd.ErrOrStderr(), c.logFormat, c.levels)
			for _, v := range misspelt {
				log.Warn("ignoring a variable", "reason", v)
			}
			return run(cmd, spec, c, log)
		},
	}
	bindFlags(cmd, spec, c)
	cmd.AddCommand(healthCommand(spec))
	cmd.CompletionOptions.HiddenDefaultCmd = true
	cmd.SetUsageTemplate(strings.ReplaceAll(cmd.UsageTemplate(), "Flags.FlagUsages", fmt.Sprintf("Flags.FlagUsagesWrapped %d", helpWidth)))
	return cmd
}

// helpWidth is the width at which --help wraps the texts of settings.
const helpWidth = 100

// bindFlags binds the settings of a process and then the common ones, in order.
func bindFlags(cmd *cobra.Command, spec Spec, c *common) {
	cmd.Flags().SortFlags = false
	spec.Settings.Flags(cmd.Flags())
	c.flags(cmd.Flags())
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return &UsageError{fmt.Errorf("unexpected argument %q: settings are flags", args[0])}
}

// verify implements --check. err has the errors of the settings themselves.
func verify(cmd *cobra.Command, spec Spec, err error, unknown []string) error {
	for _, v := range unknown {
		fmt.Fprintf(cmd.OutOrStdout(), "warning  environment: %s\n", v)
	}
	if spec.Verify != nil {
		err = errors.Join(err, located(spec.Verify(cmd.Context(), cmd.OutOrStdout()), cmd.Flags()))
	}
	if err != nil {
		return &UsageError{err}
	}
	fmt.Fprintln(cmd.OutOrStdout(), "ok")
	return nil
}

// run runs the process and its admin server.
func run(cmd *cobra.Command, spec Spec, c *common, log *slog.Logger) error {
	build, err := Build()
	if err != nil {
		return err
	}
	if err := noCoreDumps(); err != nil { // KEY-1
		return fmt.Errorf("switch core dumps off, which would have private keys: %w", err)
	}
	admin, err := NewAdmin(c.admin)
	if err != nil {
		return err
	}
	admin.TokenFile, admin.Pprof, admin.levels = c.token, c.pprof, c.levels
	admin.Register(buildMetric(build))
	admin.Page("settings", "all settings and their origins", func(w http.ResponseWriter, _ *http.Request) {
		WriteJSON(w, reportSettings(cmd.Flags()))
	})
	traces, endTraces, err := c.traces.start(cmd.Context(), "meshlog-"+spec.Use, build, log)
	if err != nil {
		return err
	}
	defer endTraces()
	log.Info("started", "build", build, "admin", admin.Addr())
	err = RunStages(cmd.Context(),
		Stage{func(ctx context.Context) error {
			return spec.Run(ctx, &Process{Build: build, Log: log, Admin: admin, Traces: traces})
		}},
		// The admin server stops last, so that it can be watched until the end.
		Stage{func(ctx context.Context) error { return admin.Run(ctx, log.With(Component, "admin")) }},
	)
	err = located(err, cmd.Flags())
	log.Info("ended", "error", err)
	return err
}

// untilSignal returns a context that SIGINT and SIGTERM cancel.
func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills
	return ctx, stop
}

// Main runs a command until it returns or a signal stops it, and returns the exit
// code.
func Main(cmd *cobra.Command) int {
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetFlagErrorFunc(flagError)
	ctx, stop := untilSignal(context.Background())
	defer stop()
	ran, err := cmd.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(os.Stderr, "%s: %s\n", cmd.Name(), strings.ReplaceAll(err.Error(), "\n", "\n  "))
	if errors.As(err, new(*UsageError)) {
		fmt.Fprintf(os.Stderr, "Run '%s --help' for usage.\n", ran.CommandPath())
		return 2
	}
	var coded interface{ ExitCode() int }
	if errors.As(err, &coded) {
		return coded.ExitCode()
	}
	return 1
}

// flagError turns an error of the command line into a UsageError.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && len(unknown.GetSpecifiedName()) > 1 {
		var known []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				known = append(known, f.Name)
			}
		})
		if meant, ok := nearest.Name(unknown.GetSpecifiedName(), known); ok {
			err = fmt.Errorf("%w; did you mean --%s?", err, meant)
		}
	}
	return &UsageError{err}
}
