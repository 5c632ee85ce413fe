// Kube-events shows the problems of the mesh on the objects of Kubernetes that have them.
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
	"meshlog.dev/services/roles/kubeevents"
)

type settings struct {
	process.Bus
	Events kubeevents.Settings
}

func (s *settings) Flags(fs *pflag.FlagSet) {
	s.Bus.Flags(fs)
	s.Events.Flags(fs)
}

func (s *settings) Check() error { return errors.Join(s.Bus.Check(), s.Events.Check()) }

func main() { os.Exit(process.Main(command())) }

func command() *cobra.Command {
	s := &settings{Bus: process.DefaultBus(), Events: kubeevents.DefaultSettings()}
	return process.Command(process.Spec{
		Use: "kube-events", Short: "Show problems of the mesh on the objects of Kubernetes that have them", Settings: s,
		Long: `Write an Event on each object of a Kubernetes cluster that the mesh finds a problem
with: what "meshlog diagnostics" shows of the cluster's objects, errors and warnings.
In the cluster it may create Events and nothing else; on the bus it has the key
observer.nk, which may ask for reports and nothing else. A problem that lasts gets an
Event each hour, because API servers forget them after an hour.`,
		Example: "  kube-events --bus nats://127.0.0.1:4222 --bus-nkey auth/observer.nk --cluster default",
		Verify:  func(context.Context, io.Writer) error { return errors.Join(s.Bus.Verify(), s.Events.Verify()) },
		Run: func(ctx context.Context, p *process.Process) error {
			return s.Events.Run(ctx, kubeevents.Options{Domain: s.Domain, Connect: s.Connect(bus.Observer(), p), Process: p})
		},
	})
}
