package cli

import (
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// hideConnection takes the flags that say how to connect out of the help of a
// command: they are the same for all, and more than its own.
func hideConnection(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		f.Hidden = f.Hidden || isConnection(f) || f.Name == "id"
	})
}

func isConnection(f *pflag.Flag) bool { return strings.HasPrefix(f.Name, "bus-") || f.Name == "domain" }

// optionsHint stands below the flags of commands that have hidden ones.
const optionsHint = `{{if .Flags.Lookup "bus-nkey"}}
"meshlog options" lists the flags that say how to connect to a bus.
{{end}}`

func optionsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "options", Short: "Lists the flags that say how to connect to a bus", Args: args(0, 0, ""),
		Long: `Lists the flags that all commands have which look at a mesh: how to connect to
its bus.

With --data, the directory of ` + "`meshlog up`" + `, none of them is needed.`,
		Example: `  meshlog proxy-status --bus nats://10.0.0.1:4222 --bus-nkey auth/operator.nk --bus-ca auth/ca.pem
  export MESHLOG_BUS=nats://10.0.0.1:4222 MESHLOG_BUS_NKEY=auth/operator.nk MESHLOG_BUS_CA=auth/ca.pem
  meshlog proxy-status`,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		of := &cobra.Command{}
		targetFlags(of)
		shown := pflag.NewFlagSet("options", pflag.ContinueOnError)
		shown.SortFlags = true
		of.Flags().VisitAll(func(f *pflag.Flag) {
			if isConnection(f) || f.Name == "bus" {
				f.Hidden = false
				shown.AddFlag(f)
			}
		})
		_, err := io.WriteString(cmd.OutOrStdout(), shown.FlagUsagesWrapped(helpWidth))
		return err
	}
	return cmd
}
