// Watcher-file publishes the objects in a directory of YAML to the log.
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
	"meshlog.dev/services/roles/watcher"
	"meshlog.dev/services/watcher/file"
)

type settings struct {
	process.Bus
	watcher.Settings
	Config   string // the directory, including its subdirectories
	Instance string // unique name of the directory
}

func (s *settings) Flags(fs *pflag.FlagSet) {
	s.Bus.Flags(fs)
	s.Settings.Flags(fs)
	fs.StringVar(&s.Config, "config", "", "`directory` of YAML to watch, including its subdirectories")
	fs.StringVar(&s.Instance, "instance", "default", "unique `name` of the directory: watchers with the same name publish as one source. "+
		"Set it if several directories are watched")
}

func (s *settings) Check() error {
	var instance error
	if s.Instance == "" {
		instance = process.Invalid("instance", "is empty")
	}
	return errors.Join(s.Bus.Check(), s.Settings.Check(), process.CheckConfig(s.Config), instance)
}

func main() { os.Exit(process.Main(command())) }

func command() *cobra.Command {
	s := &settings{Bus: process.DefaultBus(), Settings: watcher.DefaultSettings()}
	return process.Command(process.Spec{
		Use: "watcher-file", Short: "Publish the objects in a directory of YAML", Settings: s,
		Long:    "Watch a directory of YAML and publish its changes to the log. A second watcher with the same --instance is a standby.",
		Example: "  watcher-file --bus nats://127.0.0.1:4222 --bus-nkey auth/watcher-file-default.nk --config mesh/ --id watcher-1",
		Verify: func(ctx context.Context, w io.Writer) error {
			return errors.Join(s.Bus.Verify(), watcher.VerifyDirectory(ctx, s.Config, w))
		},
		Run: func(ctx context.Context, p *process.Process) error {
			shard := ident.Shard{Source: "file", Instance: s.Instance}
			return watcher.Run(ctx, watcher.Options{
				Domain: s.Domain, Shard: shard, Holder: s.ID,
				Watcher: file.New(s.Config), LogShare: s.LogShare, Process: p,
				Connect: s.Connect(bus.Watcher(shard), p),
			})
		},
	})
}
