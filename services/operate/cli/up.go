package cli

import (
	"context"

	"github.com/spf13/cobra"

	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/roles/up"
)

func upCommand() *cobra.Command {
	s := up.DefaultSettings()
	return process.Command(process.Spec{
		Use: "up", Path: "meshlog up", Short: "Runs everything in this process", Settings: s,
		Long: `Runs everything in this process: an embedded bus, the watchers of a directory
and of a Kubernetes cluster, whichever are given, the builder and a frontend.

Envoys connect to 127.0.0.1:15010 (xDS over gRPC). Health, metrics and debug are
on 127.0.0.1:15014; /readyz answers 200 when the first version is served.
Whatever is kept lies in the data directory; the other commands find the mesh
by it.`,
		Example: `  meshlog up --config mesh/ --data data/
  meshlog up --config mesh/ --data data/ --listen 0.0.0.0:15010
  meshlog up --kubeconfig ~/.kube/config --data data/
  meshlog up --kubeconfig ~/.kube/config --cluster east --config mesh/ --data data/`,
		Verify: s.Verify,
		Run:    func(ctx context.Context, p *process.Process) error { return up.Run(ctx, p, s) },
	})
}
