package agent

import (
	"context"
	"io"
	"os"

	"meshlog.dev/services/internal/process"
)

// Spec returns the process, whose command line is path.
func Spec(path string) process.Spec {
	s := DefaultSettings()
	return process.Spec{
		Use: "agent", Path: path, Short: "Run an Envoy with a certificate of the mesh", Settings: s,
		Long: `Run an Envoy as a proxy of the mesh, beside a workload or as a gateway. The agent
generates Envoy's bootstrap, gets a certificate for the workload from the mesh's CA and
renews it, gives it to Envoy over a socket that no other user can use, starts Envoy again
if it crashes, and lets clients leave before it ends. The workload's key is made in
memory and stays there, unless you give a directory for it with --state-dir.

Envoy itself connects to the frontends: if the agent ends by force, so does Envoy. The
agent can be process 1 of a container. It reads Istio's variables too: POD_NAME,
POD_NAMESPACE, SERVICE_ACCOUNT, INSTANCE_IP, CA_ADDR, PROXY_CONFIG and ISTIO_META_*.

The process ends with 1 if Envoy crashes more than ten times in a row.`,
		Example: `  meshlog ca token --namespace shop --service-account cart > /run/join-token
  ` + path + ` --xds meshlog:15012 --ca meshlog:15013 --ca-roots root.pem \
    --join-token-file /run/join-token --namespace shop --labels app=cart
  ` + path + ` --type router --xds meshlog:15012 --ca meshlog:15013 --ca-roots root.pem \
    --token-file /var/run/secrets/tokens/istio-token`,
		Verify: func(context.Context, io.Writer) error { return s.Verify() },
		Run:    func(ctx context.Context, p *process.Process) error { return s.Run(ctx, p, os.Stderr) },
	}
}
