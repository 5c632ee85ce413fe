// Watcher-xds publishes the objects of a source of MCP-over-xDS to the log.
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
	"meshlog.dev/services/roles/mcpxds"
	"meshlog.dev/services/roles/watcher"
)

type settings struct {
	process.Bus
	MCP     mcpxds.Settings
	Watcher watcher.Settings
}

func (s *settings) Flags(fs *pflag.FlagSet) {
	s.Bus.Flags(fs)
	s.MCP.Flags(fs)
	s.Watcher.Flags(fs)
}

func (s *settings) Check() error {
	var source error
	if s.MCP.Source == "" {
		source = process.Invalid("mcp-source", "is missing: give the address of the source, xds://HOST:PORT")
	} else {
		source = s.MCP.Check()
	}
	return errors.Join(s.Bus.Check(), source, s.Watcher.Check())
}

func main() { os.Exit(process.Main(command())) }

func command() *cobra.Command {
	s := &settings{Bus: process.DefaultBus(), MCP: mcpxds.DefaultSettings(), Watcher: watcher.DefaultSettings()}
	return process.Command(process.Spec{
		Use: "watcher-xds", Short: "Publish the objects of a source of MCP-over-xDS", Settings: s,
		Long: `Read Istio's objects from a source of MCP-over-xDS, which Istio's MeshConfig names as
configSources: istiod, Higress or slime. Publish their changes to the log.
A second watcher with the same --instance is a standby.`,
		Example: `  watcher-xds --bus nats://127.0.0.1:4222 --bus-nkey auth/watcher-mcpxds-higress.nk --mcp-source xds://higress:15051 --instance higress
  watcher-xds --bus nats://127.0.0.1:4222 --mcp-source xds://istiod.istio-system:15012 --mcp-tls MUTUAL --mcp-ca root.pem --mcp-cert tls.crt --mcp-key tls.key`,
		Verify: func(context.Context, io.Writer) error { return errors.Join(s.Bus.Verify(), s.MCP.Verify()) },
		Run: func(ctx context.Context, p *process.Process) error {
			return s.MCP.Run(ctx, watcher.Place{
				Domain: s.Domain, Holder: s.ID, Connect: s.Connect(bus.Watcher(s.MCP.Shard()), p), Process: p, LogShare: s.Watcher.LogShare,
			})
		},
	})
}
