package cli

import (
	"runtime"

	"github.com/spf13/cobra"

	"meshlog.dev/services/internal/process"
)

func versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "version", Short: "Says which build this is", Args: args(0, 0, ""),
		Long: `Says which build this is.

Builders of one build make equal versions from equal logs; with another build
a new segment of the log begins.`,
		Example: `  meshlog version
  meshlog version -o json`,
	}
	format := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		out, err := newOutput(cmd, *format)
		if err != nil {
			return err
		}
		build, err := process.Build()
		if err != nil {
			return err
		}
		v := struct {
			Version string `json:"version"`
			Build   string `json:"build"`
			Go      string `json:"go"`
		}{process.Version, build, runtime.Version()}
		return out.print(v, func() error {
			return out.line("meshlog %s (build %s, %s)", v.Version, v.Build, v.Go)
		})
	}
	return cmd
}
