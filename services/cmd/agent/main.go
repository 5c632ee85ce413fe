// Agent runs an Envoy with a certificate of the mesh.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/roles/agent"
)

func main() { os.Exit(process.Main(command())) }

func command() *cobra.Command { return process.Command(agent.Spec("agent")) }
