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
)

type settings struct {
	process.Bus
	watcher.Settings
	watcher.Directories
	Secrets  watcher.Secrets
	Exchange watcher.KeyExchange
	Instance string // unique name of the directory
}

func (s *settings) Flags(fs *pflag.FlagSet) {
	s.Bus.Flags(fs)
	s.Settings.Flags(fs)
	s.Directories.Flags(fs)
	s.Secrets.Flags(fs)
	s.Exchange.Flags(fs, "certificates")
	fs.StringVar(&s.Instance, "instance", "default", "unique `name` of the directory: watchers with the same name publish as one source. "+
		"Set it if several directories are watched")
}

func (s *settings) Check() error {
	var instance error
	if s.Instance == "" {
		instance = process.Invalid("instance", "is empty")
	}
	return errors.Join(s.Bus.Check(), s.Settings.Check(), s.Directories.Check(s.Secrets), s.Revision.Check(), s.Exchange.Check("certificates", s.Certificates), instance)
}

func main() { os.Exit(process.Main(command())) }

func command() *cobra.Command {
	s := &settings{Bus: process.DefaultBus(), Settings: watcher.DefaultSettings(), Secrets: watcher.DefaultSecrets()}
	return process.Command(process.Spec{
		Use: "watcher-file", Short: "Publish the objects in a directory of YAML", Settings: s,
		Long:    "Watch a directory of YAML, and maybe one of TLS credentials, and publish their changes to the log. A second watcher with the same --instance is a standby.",
		Example: "  watcher-file --bus nats://127.0.0.1:4222 --bus-nkey auth/watcher-file-default.nk --config mesh/ --id watcher-1",
		Verify: func(ctx context.Context, w io.Writer) error {
			return errors.Join(s.Bus.Verify(), s.Directories.Verify(ctx, s.Secrets, w), s.Exchange.Verify())
		},
		Run: func(ctx context.Context, p *process.Process) error {
			shard := ident.Shard{Source: "file", Instance: s.Instance}
			files, err := s.Directories.Watcher(s.Secrets)
			if err != nil {
				return err
			}
			keys, err := s.Exchange.Keys(s.Directories, s.Secrets, files)
			if err != nil {
				return err
			}
			return watcher.Run(ctx, watcher.Options{
				Domain: s.Domain, Shard: shard, Holder: s.ID, Keys: keys,
				Watcher: files, LogShare: s.LogShare, Process: p,
				Connect: s.Connect(bus.Watcher(shard), p),
			})
		},
	})
}
