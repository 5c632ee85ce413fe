// Watcher-kube publishes the objects of a Kubernetes cluster to the log.
package main

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/roles/kube"
	"meshlog.dev/services/roles/watcher"
)

type settings struct {
	process.Bus
	kube.Settings
	Exchange watcher.KeyExchange
	Watcher  watcher.Settings
}

func (s *settings) Flags(fs *pflag.FlagSet) {
	s.Bus.Flags(fs)
	s.Settings.Flags(fs)
	s.Settings.Revision.Flags(fs)
	s.Exchange.Flags(fs, "secret-key-file")
	s.Watcher.Flags(fs)
}

func (s *settings) Check() error {
	return errors.Join(s.Bus.Check(), s.Settings.Check(), s.Exchange.Check("secret-key-file", s.Secrets.KeyFile), s.Watcher.Check())
}

func main() { os.Exit(process.Main(command())) }

func command() *cobra.Command {
	s := &settings{Bus: process.DefaultBus(), Settings: kube.DefaultSettings(), Watcher: watcher.DefaultSettings()}
	return process.Command(process.Spec{
		Use: "watcher-kube", Short: "Publish the objects of a Kubernetes cluster", Settings: s,
		Long: `Watch a Kubernetes cluster and publish its changes to the log: Services and
their endpoints, Pods, Nodes, Namespaces, and the objects of Istio, of the
Gateway API and of meshlog whose definitions are installed, now or later.
A second watcher with the same --cluster is a standby.`,
		Example: `  watcher-kube --bus nats://127.0.0.1:4222 --bus-nkey auth/watcher-kubernetes-east.nk --cluster east --kubeconfig ~/.kube/config
  watcher-kube --bus nats://nats:4222 --cluster east    # in a pod of the cluster`,
		Verify: func(context.Context, io.Writer) error {
			return errors.Join(s.Bus.Verify(), s.Settings.Verify(), s.Exchange.Verify())
		},
		Run: func(ctx context.Context, p *process.Process) error {
			c, err := kube.New(&s.Settings, kube.Options{
				Domain: s.Domain, Holder: s.ID, Process: p, LogShare: s.Watcher.LogShare, Ring: s.Exchange.Ring(),
				Connect: func(shard ident.Shard) func(context.Context) (*bus.Conn, error) {
					return s.Connect(bus.Watcher(shard), p)
				},
			})
			if err != nil {
				return err
			}
			return c.Run(ctx)
		},
	})
}
