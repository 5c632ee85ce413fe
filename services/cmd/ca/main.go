// Ca is the certificate authority of the mesh: it gives workloads certificates for their
// identity.
package main

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/roles/ca"
)

type settings struct {
	process.Bus
	CA ca.Settings
}

func (s *settings) Flags(fs *pflag.FlagSet) {
	s.Bus.Flags(fs)
	s.CA.Flags(fs)
}

func (s *settings) Check() error { return errors.Join(s.Bus.Check(), s.CA.Check()) }

func main() { os.Exit(process.Main(command())) }

func command() *cobra.Command {
	s := &settings{Bus: process.DefaultBus(), CA: ca.DefaultSettings()}
	return process.Command(process.Spec{
		Use: "ca", Short: "Give workloads certificates for their identity", Settings: s,
		Long: `Give workloads certificates for spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/ACCOUNT, over
Istio's protocol, and publish the roots of the mesh. Name at least one way in which
callers prove who they are: --kubernetes, --join-tokens, --oidc or
--certificate-renewal. Replicas share the key and take turns in publishing.

The CA needs the bus: no certificate is handed out that the audit does not have.

With --signer none another authority, such as SPIRE, gives out the certificates. The
process then has no key and no port, and publishes the roots in --trust-bundle.`,
		Example: `  ca --bus nats://127.0.0.1:4222 --bus-nkey auth/watcher-ca-default.nk --ca-key-file /var/lib/meshlog/ca/ca.key --seal-key-file /run/credentials/seal.key --join-tokens --certificate-renewal
  ca --bus nats://127.0.0.1:4222 --bus-nkey auth/watcher-ca-default.nk --signer plugged --ca-dir /etc/cacerts --roots-file /var/lib/meshlog/ca/roots.state --kubernetes
  ca --bus nats://127.0.0.1:4222 --bus-nkey auth/watcher-ca-default.nk --signer none --trust-bundle /var/lib/spire/bundle.pem --trust-domain example.org`,
		Verify: func(context.Context, io.Writer) error { return errors.Join(s.Bus.Verify(), s.CA.Verify()) },
		Run: func(ctx context.Context, p *process.Process) error {
			return s.CA.Run(ctx, ca.Options{Domain: s.Domain, ID: s.ID, Connect: s.Connect(bus.Watcher(ca.Shard), p), Process: p})
		},
	})
}
