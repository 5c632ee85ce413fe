// Watcher-sources publishes the objects of the sources that a file lists to the log.
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
	"meshlog.dev/services/roles/sources"
	"meshlog.dev/services/roles/watcher"
)

type settings struct {
	process.Bus
	sources.Settings
	Watcher watcher.Settings
}

func (s *settings) Flags(fs *pflag.FlagSet) {
	s.Bus.Flags(fs)
	s.Settings.Flags(fs)
	s.Watcher.Flags(fs)
}

func (s *settings) Check() error {
	return errors.Join(s.Bus.Check(), s.Settings.Check(), s.Watcher.Check())
}

func main() { os.Exit(process.Main(command())) }

func command() *cobra.Command {
	s := &settings{Bus: process.DefaultBus(), Settings: sources.DefaultSettings(), Watcher: watcher.DefaultSettings()}
	return process.Command(process.Spec{
		Use: "watcher-sources", Short: "Publish the objects of the sources that a file lists", Settings: s,
		Long: `Watch the sources that a file lists, and publish their changes to the log. Each source is
watched as by the process of its own, with the same settings:

  sources:
  - type: consul
    consul: [https://consul.example.com:8501]
    consul-datacenter: east
    bus-nkey: auth/watcher-consul-east.nk    # without it, the key of this process
  - type: file
    config: mesh/

The file is read again every 2 s. A new entry starts a watcher, a changed one restarts it,
and one that is gone stops it: its objects stay as they are until ` + "`meshlog sources remove`" + `
removes them. If the file has an error, nothing changes. A second process with the same
file is a standby.

An Istio MeshConfig names sources too, in its configSources, which are then the only ones:

  configSources:
  - address: xds://istiod.example.com:15010
  - address: fs:///etc/mesh
  - address: k8s://                         # the cluster of this pod

It is published as the source file/mesh-config, for the effect of its other fields.`,
		Example: `  watcher-sources --bus nats://127.0.0.1:4222 --sources sources.yaml --id sources-1
  watcher-sources --bus nats://127.0.0.1:4222 --mesh-config mesh.yaml --id sources-1`,
		Verify: func(ctx context.Context, w io.Writer) error {
			return errors.Join(s.Bus.Verify(), s.Settings.Verify(ctx, w))
		},
		Run: func(ctx context.Context, p *process.Process) error {
			return s.Settings.Run(ctx, sources.Options{
				Domain: s.Domain, Holder: s.ID, Process: p, LogShare: s.Watcher.LogShare,
				Connect: func(shard ident.Shard, user func(bus.ConnectOptions) bus.ConnectOptions) func(context.Context) (*bus.Conn, error) {
					return func(ctx context.Context) (*bus.Conn, error) {
						return bus.ConnectWait(ctx, user(s.Options(bus.Watcher(shard), p.Log.With(process.Component, "bus"))))
					}
				},
			})
		},
	})
}
