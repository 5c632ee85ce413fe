// Meshlog runs the whole mesh control plane in one process (`meshlog up`), and
// inspects and operates any mesh that runs.
package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/operate/admission"
	"meshlog.dev/services/operate/cli"
	"meshlog.dev/services/roles/agent"
	"meshlog.dev/services/roles/console"
	"meshlog.dev/services/roles/up"
)

func main() { os.Exit(process.Main(command())) }

func command() *cobra.Command {
	return cli.With([]*cobra.Command{admission.Command()}, upCommand(), process.Command(console.Spec("meshlog console")), process.Command(agent.Spec("meshlog agent")))
}

func upCommand() *cobra.Command {
	s := up.DefaultSettings()
	s.Console = console.DefaultSettings()
	return process.Command(process.Spec{
		Use: "up", Path: "meshlog up", Short: "Run a whole mesh in this process", Settings: s,
		Long: `Run a whole mesh in this process: a bus, a builder, a frontend, and a watcher for
each source that is given: a directory, a Kubernetes cluster, and those that a file lists,
such as a Consul datacenter, a Nacos registry or a source of MCP-over-xDS (see
watcher-sources --help).

Envoys connect to 127.0.0.1:15010 (xDS over gRPC). Health, metrics and debug pages
are on 127.0.0.1:15014; /readyz answers 200 once the first version is served. The web
console is http://127.0.0.1:15016/.
The data directory holds all state; the other commands find the mesh by it.`,
		Example: `  meshlog up --config mesh/ --data data/
  meshlog up --config mesh/ --data data/ --listen 0.0.0.0:15010
  meshlog up --kubeconfig ~/.kube/config --data data/
  meshlog up --kubeconfig ~/.kube/config --cluster east --config mesh/ --data data/
  meshlog up --sources sources.yaml --config mesh/ --data data/`,
		Verify: s.Verify,
		Run:    func(ctx context.Context, p *process.Process) error { return up.Run(ctx, p, s) },
	})
}
