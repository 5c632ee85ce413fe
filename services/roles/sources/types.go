package sources

import (
	"context"
	"errors"

	"github.com/spf13/pflag"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/roles/consul"
	"meshlog.dev/services/roles/kube"
	"meshlog.dev/services/roles/mcpxds"
	"meshlog.dev/services/roles/nacos"
	"meshlog.dev/services/roles/watcher"
)

// source is the watcher of an entry of a file of sources. Its settings are those of the
// process that runs one such watcher alone.
type source interface {
	Flags(fs *pflag.FlagSet)
	Check() error
	runnable
}

// runnable is a watcher that is started and stopped.
type runnable interface {
	// Verify checks the files that the settings name.
	Verify() error
	Shard() ident.Shard
	// Run watches until ctx is done.
	Run(ctx context.Context, at watcher.Place) error
}

// typeTable makes the source of an entry by its type.
type typeTable map[string]func() source

var allTypes = typeTable{
	"consul":     func() source { s := consul.DefaultSettings(); return &s },
	"file":       func() source { return &fileSource{Secrets: watcher.DefaultSecrets(), Instance: "default"} },
	"kubernetes": func() source { return &kubeSource{kube.DefaultSettings()} },
	"nacos":      func() source { s := nacos.DefaultSettings(); return &s },
	"xds":        func() source { s := mcpxds.DefaultSettings(); return &s },
}

// Roles returns the users of the bus that may publish for all instances of all types.
func Roles() []bus.Role {
	var all []bus.Role
	for _, source := range []string{"consul", "file", "kubernetes", "nacos", "mcpxds"} {
		all = append(all, bus.Watchers(source))
	}
	return all
}

// fileSource publishes a directory. Private keys are given by processes of their own.
type fileSource struct {
	watcher.Directories
	Secrets  watcher.Secrets
	Instance string
}

func (s *fileSource) Flags(fs *pflag.FlagSet) {
	s.Directories.Flags(fs)
	s.Secrets.Flags(fs)
	fs.StringVar(&s.Instance, "instance", s.Instance, "")
}

func (s *fileSource) Check() error {
	var instance error
	if s.Instance == "" {
		instance = process.Invalid("instance", "is empty")
	}
	return errors.Join(s.Directories.Check(s.Secrets), s.Revision.Check(), instance, noKeys("certificates", s.Certificates, "watcher-file"))
}

func (s *fileSource) Verify() error { return nil }

func (s *fileSource) Shard() ident.Shard { return ident.Shard{Source: "file", Instance: s.Instance} }

func (s *fileSource) Run(ctx context.Context, at watcher.Place) error {
	w, err := s.Watcher(s.Secrets)
	if err != nil {
		return err
	}
	return watcher.Run(ctx, watcher.Options{
		Domain: at.Domain, Shard: s.Shard(), Holder: at.Holder, Watcher: w, Connect: at.Connect, Process: at.Process, LogShare: at.LogShare, Optional: at.Optional,
	})
}

// kubeSource publishes one cluster: other clusters have entries of their own.
type kubeSource struct{ kube.Settings }

func (s *kubeSource) Flags(fs *pflag.FlagSet) {
	s.Settings.Flags(fs)
	s.Settings.Revision.Flags(fs)
}

func (s *kubeSource) Check() error {
	var remote error
	if s.RemoteClusters != "" {
		remote = process.Invalid("remote-clusters", "has no effect here: give each cluster an entry")
	}
	return errors.Join(s.Settings.Check(), remote, noKeys("secret-key-file", s.Secrets.KeyFile, "watcher-kube"))
}

func (s *kubeSource) Run(ctx context.Context, at watcher.Place) error {
	c, err := kube.New(&s.Settings, kube.Options{
		Domain: at.Domain, Holder: at.Holder, Process: at.Process, LogShare: at.LogShare, Optional: at.Optional,
		Connect: func(ident.Shard) func(context.Context) (*bus.Conn, error) { return at.Connect },
	})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// noKeys returns an error if a setting of private keys has a value: frontends would ask for
// keys that nobody gives.
func noKeys(setting, value, program string) error {
	if value == "" {
		return nil
	}
	return process.Invalid(setting, "cannot be set here: run %s as a process of its own, which gives frontends the private keys", program)
}
