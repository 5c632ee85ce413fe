// Package command holds what the commands of meshlog share: the mesh that the
// flags name, the output, the exit codes, and the words that name a version, an
// object, a time or a proxy.
//
// # Exit codes
//
//	0  done
//	1  the command failed, or the condition that it checks does not hold
//	2  the command line is wrong
//	3  the named object, version or proxy does not exist
//	4  of verify: only versions of other builds fold to another content
//
// what-if has codes of its own: its help lists them.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"

	"github.com/spf13/cobra"

	"meshlog.dev/services/internal/process"
)

// Env is the environment of one run of a command: the mesh that its flags name,
// and its output.
type Env struct {
	*Target
	*Output
	Stdin io.Reader
}

// Func runs a command. It need not check errors of its output: Live, Past and Local
// return the first one.
type Func func(ctx context.Context, e *Env, args []string) error

// Local returns cmd as a command that needs no mesh. Run prints with its Env in
// the format that -o names.
func Local(cmd *cobra.Command, run Func) *cobra.Command { return bind(cmd, &Target{}, run) }

// Live returns cmd as a command about a mesh that runs, with the flags that name
// one. The connection is made when run first uses it.
func Live(cmd *cobra.Command, run Func) *cobra.Command { return bind(cmd, bindTarget(cmd), run) }

// Past returns cmd as a command about the past: the mesh may run, have ended, or
// lie in an archive.
func Past(cmd *cobra.Command, run Func) *cobra.Command {
	t := bindTarget(cmd)
	cmd.Flags().Lookup("data").Usage = "data `directory` of `meshlog up`, running or not; or of a builder or a frontend, for its versions"
	cmd.Flags().StringVar(&t.archive, "archive", "", "`file` that `meshlog export` wrote")
	return bind(cmd, t, run)
}

func bind(cmd *cobra.Command, t *Target, run Func) *cobra.Command {
	format := cmd.Flags().StringP("output", "o", Table, "output `format`: table, json or yaml")
	t.flags = cmd.Flags()
	t.complete(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		debug.SetGCPercent(garbage)
		if *format != Table && *format != JSON && *format != YAML {
			return Usage("--output %q: want table, json or yaml", *format)
		}
		t.Stderr = cmd.ErrOrStderr()
		out := NewOutput(cmd.OutOrStdout(), *format)
		defer func() { err = errors.Join(err, t.Close()) }()
		if err := run(cmd.Context(), &Env{Target: t, Output: out, Stdin: cmd.InOrStdin()}, args); err != nil {
			return err
		}
		return out.err
	}
	return cmd
}

// garbage makes the process of a command collect garbage less often than one that serves: it
// lives for seconds, and collecting took a third of what it did in a large mesh.
const garbage = 400

// coded is an error with an exit code of its own.
type coded struct {
	error
	code int
}

func (c coded) Unwrap() error { return c.error }

// ExitCode returns the exit code of the process that ends with this error.
func (c coded) ExitCode() int { return c.code }

// NotFound returns the error of a command whose argument names nothing that
// exists: exit code 3.
func NotFound(format string, args ...any) error { return coded{fmt.Errorf(format, args...), 3} }

// OtherBuild returns the error of a command that found only differences between
// builds: exit code 4.
func OtherBuild(format string, args ...any) error { return coded{fmt.Errorf(format, args...), 4} }

// Coded returns the error of a command that has an exit code of its own, which its help
// names.
func Coded(code int, format string, args ...any) error {
	return coded{fmt.Errorf(format, args...), code}
}

// Usage returns the error of a wrong command line: exit code 2.
func Usage(format string, args ...any) error {
	return &process.UsageError{Err: fmt.Errorf(format, args...)}
}

// Args demands that a command has from least to most arguments; what names the
// one that is missing.
func Args(least, most int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) > most:
			return Usage("unexpected argument %q", args[most])
		case len(args) < least:
			return Usage("%s is missing", what)
		}
		return nil
	}
}
