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
//	4  of verify: only what other builds made comes out differently
package cli

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"meshlog.dev/services/internal/process"
)

// helpWidth is after how many characters the text of a flag goes on in another
// line.
const helpWidth = 100

// New returns the command `meshlog`.
func New() *cobra.Command {
	root := &cobra.Command{
		Use:   "meshlog",
		Short: "An event-sourced control plane for Envoy",
		Long: `meshlog puts what sources say on a log, turns the log into versions, and
serves versions to Envoys.

Each flag can be set by a variable: --data by MESHLOG_DATA. Exit codes: 0 done,
1 failed, 2 called in a wrong way, 3 what was asked for does not exist.`,
		Example: `  meshlog up --config mesh/ --data data/
  export MESHLOG_DATA=data/
  meshlog proxy-status
  meshlog log --follow`,
		Args:                       unknownCommand, // before flags of a command that is not there
		FParseErrWhitelist:         cobra.FParseErrWhitelist{UnknownFlags: true},
		SuggestionsMinimumDistance: 2,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return process.ApplySettings(cmd.Flags(), os.LookupEnv)
		},
	}
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), "Flags.FlagUsages", fmt.Sprintf("Flags.FlagUsagesWrapped %d", helpWidth)) + optionsHint)
	root.CompletionOptions.DisableDefaultCmd = true // completionCommand is in its place
	for _, g := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Run it:", []*cobra.Command{upCommand(), busAuthCommand(), streamsCommand()}},
		{"How is it?", []*cobra.Command{
			statusCommand(), proxyStatusCommand(), proxyConfigCommand(), waitCommand(), sourcesCommand(), diagnosticsCommand(), approveCommand(),
		}},
		{"What happened?", []*cobra.Command{
			logCommand(), historyCommand(), versionsCommand(), showCommand(), diffCommand(), replayCommand(), verifyCommand(),
			exportCommand(), importCommand(),
		}},
		{"Besides:", []*cobra.Command{completionCommand(), optionsCommand(), versionCommand()}},
	} {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, c := range g.commands {
			c.GroupID = g.title
			root.AddCommand(c)
		}
		root.SetHelpCommandGroupID(g.title) // the last one
	}
	complete(root)
	return root
}

// unknownCommand is what is wrong with arguments of `meshlog` itself.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if meant := cmd.SuggestionsFor(args[0]); len(meant) > 0 {
		return usage("unknown command %q; did you mean %s?", args[0], strings.Join(meant, " or "))
	}
	return usage("unknown command %q", args[0])
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
