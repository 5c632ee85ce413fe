// Watcher-consul publishes the services of a Consul datacenter to the log.
package main

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/roles/consul"
	"meshlog.dev/services/roles/watcher"
)

type settings struct {
	process.Bus
	Consul  consul.Settings
	Watcher watcher.Settings
}

func (s *settings) Flags(fs *pflag.FlagSet) {
	s.Bus.Flags(fs)
	s.Consul.Flags(fs)
	s.Watcher.Flags(fs)
}

func (s *settings) Check() error {
	return errors.Join(s.Bus.Check(), s.Consul.Check(), s.Watcher.Check())
}

func main() { os.Exit(process.Main(command())) }

func command() *cobra.Command {
	s := &settings{Bus: process.DefaultBus(), Consul: consul.DefaultSettings(), Watcher: watcher.DefaultSettings()}
	return process.Command(process.Spec{
		Use: "watcher-consul", Short: "Publish the services of a Consul datacenter", Settings: s,
		Long: `Watch the services of a Consul datacenter and their instances, and publish their
changes to the log. Clients call NAME.service.consul.
A second watcher of the datacenter is a standby.`,
		Example: `  watcher-consul --bus nats://127.0.0.1:4222 --bus-nkey auth/watcher-consul-dc1.nk --consul 127.0.0.1:8500 --id watcher-consul-1
  watcher-consul --bus nats://nats:4222 --consul https://consul-1:8501,https://consul-2:8501 --consul-datacenter east`,
		Verify: func(context.Context, io.Writer) error { return errors.Join(s.Bus.Verify(), s.Consul.Verify()) },
		Run: func(ctx context.Context, p *process.Process) error {
			return s.Consul.Run(ctx, watcher.Place{
				Domain: s.Domain, Holder: s.ID, Connect: s.Connect(s.Consul.Role(), p), Process: p, LogShare: s.Watcher.LogShare,
			})
		},
	})
}
