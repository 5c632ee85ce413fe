// Watcher-nacos publishes the services of a Nacos registry to the log.
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
	"meshlog.dev/services/roles/nacos"
	"meshlog.dev/services/roles/watcher"
)

type settings struct {
	process.Bus
	Nacos   nacos.Settings
	Watcher watcher.Settings
}

func (s *settings) Flags(fs *pflag.FlagSet) {
	s.Bus.Flags(fs)
	s.Nacos.Flags(fs)
	s.Watcher.Flags(fs)
}

func (s *settings) Check() error {
	return errors.Join(s.Bus.Check(), s.Nacos.Check(), s.Watcher.Check())
}

func main() { os.Exit(process.Main(command())) }

func command() *cobra.Command {
	s := &settings{Bus: process.DefaultBus(), Nacos: nacos.DefaultSettings(), Watcher: watcher.DefaultSettings()}
	return process.Command(process.Spec{
		Use: "watcher-nacos", Short: "Publish the services of a Nacos registry", Settings: s,
		Long: `Watch the services of a namespace of a Nacos registry (2.x or 3.x) over gRPC, and
publish them to the log. What the registry loses when it restarts stays for a minute.
A second watcher with the same --instance is a standby.`,
		Example: "  watcher-nacos --bus nats://127.0.0.1:4222 --bus-nkey auth/watcher-nacos-public.nk --nacos nacos-1,nacos-2,nacos-3 --id watcher-nacos-1",
		Verify:  func(context.Context, io.Writer) error { return errors.Join(s.Bus.Verify(), s.Nacos.Verify()) },
		Run: func(ctx context.Context, p *process.Process) error {
			return s.Nacos.Run(ctx, watcher.Place{
				Domain: s.Domain, Holder: s.ID, Connect: s.Connect(bus.Watcher(s.Nacos.Shard()), p), Process: p, LogShare: s.Watcher.LogShare,
			})
		},
	})
}
