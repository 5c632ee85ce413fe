// Package cli assembles the command line of meshlog from the commands of inspect,
// explain, history and act. Package command lists the exit codes.
package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/operate/act"
	"meshlog.dev/services/operate/apply"
	"meshlog.dev/services/operate/bisect"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/explain"
	"meshlog.dev/services/operate/history"
	"meshlog.dev/services/operate/inspect"
	"meshlog.dev/services/operate/rollback"
	"meshlog.dev/services/operate/serve"
)

// helpWidth is the width of the texts of flags.
const helpWidth = 100

// optionsHint is printed below the flags of commands that connect to a bus.
const optionsHint = `{{if .Flags.Lookup "bus-nkey"}}
"meshlog options" lists the flags that say how to connect to a bus.
{{end}}`

// New returns the command `meshlog`, with run as the commands that run processes.
func New(run ...*cobra.Command) *cobra.Command { return With(nil, run...) }

// With returns the command `meshlog` with more commands for operators, which link what
// the others do not need.
func With(operate []*cobra.Command, run ...*cobra.Command) *cobra.Command {
	root := &cobra.Command{
		Use:   "meshlog",
		Short: "An event-sourced control plane for Envoy",
		Long: `meshlog records the changes of its sources in a log, builds versions from the log,
and serves the versions to Envoys.

A variable can set each flag: MESHLOG_DATA sets --data. Exit codes: 0 done,
1 failed, 2 wrong command line, 3 the named object, version or proxy does not exist.`,
		Example: `  meshlog up --config mesh/ --data data/
  export MESHLOG_DATA=data/
  meshlog proxy-status
  meshlog log --follow`,
		Args:                       unknownCommand, // is checked before the flags of an unknown command
		FParseErrWhitelist:         cobra.FParseErrWhitelist{UnknownFlags: true},
		SuggestionsMinimumDistance: 2,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return process.ApplySettings(cmd.Flags(), os.LookupEnv)
		},
	}
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), "Flags.FlagUsages", fmt.Sprintf("Flags.FlagUsagesWrapped %d", helpWidth)) + optionsHint)
	root.CompletionOptions.DisableDefaultCmd = true // completionCommand takes its place
	sources := inspect.Sources()
	sources.AddCommand(act.RemoveSource())
	for _, g := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Run:", run},
		{"Inspect:", []*cobra.Command{
			inspect.Status(), inspect.ProxyStatus(), inspect.ProxyConfig(), inspect.Simulate(), explain.Why(), explain.WhyNot(), inspect.Certs(), sources, inspect.Diagnostics(), inspect.Wait(),
		}},
		{"History:", []*cobra.Command{
			history.Log(), history.History(), history.Versions(), history.Show(), history.Diff(), history.Replay(), history.Verify(),
			bisect.Bisect(), serve.Serve(), history.Export(), history.Import(), history.Audit(),
		}},
		{"Operate:", append([]*cobra.Command{apply.Apply(), apply.WhatIf(), apply.Get(), apply.Delete(), apply.Validate(), act.Approve(), rollback.Rollback(), rollback.Pin(), rollback.Unpin(), rollback.Rollouts(), rollback.Freeze(), rollback.Release(), act.Drain(), act.CA(), act.Streams(), act.BusAuth()}, operate...)},
		{"Other:", []*cobra.Command{completionCommand(), optionsCommand(), versionCommand()}},
	} {
		if len(g.commands) == 0 {
			continue
		}
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, c := range g.commands {
			c.GroupID = g.title
			root.AddCommand(c)
		}
		root.SetHelpCommandGroupID(g.title) // the last group
	}
	return root
}

// unknownCommand returns the error for arguments of `meshlog` itself.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		return command.Usage("unknown command %q; did you mean %s?", args[0], strings.Join(near, " or "))
	}
	return command.Usage("unknown command %q", args[0])
}

func optionsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "options", Short: "List the flags that say how to connect to a bus", Args: command.Args(0, 0, ""),
		Long: `List the flags that say how to connect to the bus of a mesh. All commands that need
a mesh have them.

None of them is needed with --data, the directory of ` + "`meshlog up`.",
		Example: `  meshlog proxy-status --bus nats://10.0.0.1:4222 --bus-nkey auth/operator.nk --bus-ca auth/ca.pem
  export MESHLOG_BUS=nats://10.0.0.1:4222 MESHLOG_BUS_NKEY=auth/operator.nk MESHLOG_BUS_CA=auth/ca.pem
  meshlog proxy-status`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := io.WriteString(cmd.OutOrStdout(), command.Connection().FlagUsagesWrapped(helpWidth))
			return err
		},
	}
}

func versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "version", Short: "Show the build of this program", Args: command.Args(0, 0, ""),
		Long: `Show the build of this program.

Builders of one build make equal versions from equal logs; a builder of another
build begins a new segment of the log.`,
		Example: `  meshlog version
  meshlog version -o json`,
	}
	return command.Local(cmd, func(_ context.Context, e *command.Env, _ []string) error {
		build, err := process.Build()
		if err != nil {
			return err
		}
		v := struct {
			Version string `json:"version"`
			Build   string `json:"build"`
			Go      string `json:"go"`
		}{process.Version, build, runtime.Version()}
		e.Print(v, func() { e.Line("meshlog %s (build %s, %s)", v.Version, v.Build, v.Go) })
		return nil
	})
}

func completionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "completion bash|zsh|fish", Short: "Write the completion script of a shell",
		Long: `Write the completion script of a shell. It completes commands and flags and, if
--data or --bus is given or set, proxies, versions, objects and sources of the mesh.`,
		Example: `  source <(meshlog completion bash)                                    # this shell
  meshlog completion bash > /etc/bash_completion.d/meshlog             # every shell
  meshlog completion zsh > "${fpath[1]}/_meshlog"
  meshlog completion fish > ~/.config/fish/completions/meshlog.fish`,
		Args: command.Args(1, 1, "the name of a shell (bash, zsh or fish)"), ValidArgs: []string{"bash", "zsh", "fish"},
		RunE: func(cmd *cobra.Command, args []string) error {
			switch args[0] {
			case "bash":
				return cmd.Root().GenBashCompletionV2(cmd.OutOrStdout(), true)
			case "zsh":
				return cmd.Root().GenZshCompletion(cmd.OutOrStdout())
			case "fish":
				return cmd.Root().GenFishCompletion(cmd.OutOrStdout(), true)
			}
			return command.Usage("shell %q: want bash, zsh or fish", args[0])
		},
	}
}
