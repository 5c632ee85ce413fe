// Package cli is the command line of meshlog, one file a command.
//
// Commands look at a mesh that runs: over its bus, which they find by --data
// (the data directory of `meshlog up`) or by --bus. Where nothing runs on a
// data directory, those that can read a copy of what was left there, and say
// so.
//
// # Exit codes
//
//	0  done
//	1  it failed, or what was asked for does not hold; standard error says what
//	2  it was called in a way it does not understand
//	3  what was asked for does not exist
package cli

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"meshlog.dev/services/internal/process"
)

// New returns the command `meshlog`.
func New() *cobra.Command {
	root := &cobra.Command{
		Use:   "meshlog",
		Short: "An event-sourced control plane for Envoy",
		Long: `meshlog puts what sources say on a log, turns the log into versions, and
serves versions to Envoys.

  meshlog up             runs all of it in this process
  meshlog log            shows what came in
  meshlog versions       shows what was published, and why
  meshlog proxy-status   shows who has applied it
  meshlog diagnostics    shows what is wrong with what came in
  meshlog approve        shows what is held back or in quarantine, or lets it through

Each flag can be set by a variable: --data by MESHLOG_DATA. Exit codes: 0 done,
1 failed, 2 called in a wrong way, 3 what was asked for does not exist.`,
		Example: `  meshlog up --config mesh/ --data data/
  meshlog log --data data/ --follow`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("unknown command %q", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return process.ApplySettings(cmd.Flags(), os.LookupEnv)
		},
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(
		upCommand(), logCommand(), versionsCommand(), proxyStatusCommand(),
		proxyConfigCommand(), waitCommand(), sourcesCommand(), diagnosticsCommand(), approveCommand(), busAuthCommand(), versionCommand(),
	)
	root.AddCommand( // about the past
		historyCommand(), showCommand(), diffCommand(), replayCommand(), verifyCommand(), exportCommand(), importCommand(),
	)
	return root
}

// errNotFound says that what was asked for does not exist.
type errNotFound struct{ err error }

func (e errNotFound) Error() string { return e.err.Error() }
func (e errNotFound) Unwrap() error { return e.err }

// ExitCode is that of the process.
func (e errNotFound) ExitCode() int { return 3 }

func notFound(format string, args ...any) error { return errNotFound{fmt.Errorf(format, args...)} }

// usage is an error of the caller.
func usage(format string, args ...any) error {
	return &process.UsageError{Err: fmt.Errorf(format, args...)}
}

// args says how many arguments a command takes.
func args(least, most int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) > most:
			return usage("unexpected argument %q", args[most])
		case len(args) < least:
			return usage("%s is missing", what)
		}
		return nil
	}
}

// closeAll closes what a command opened; what is only read is not lost.
func closeAll(closers []func() error) error {
	var errs []error
	for _, c := range closers {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}
