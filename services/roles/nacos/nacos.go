// Package nacos runs the watcher of a Nacos registry, for watcher-nacos and for
// roles/sources.
package nacos

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/roles/watcher"
	"meshlog.dev/services/watcher/nacos"
	"meshlog.dev/services/watcher/registry"
)

// Settings name a registry and select its services. The flags' texts describe them.
type Settings struct {
	Addresses       []string
	Namespace       string
	Groups          []string
	Instance        string
	ObjectNamespace string
	Suffix          string
	Ports           []string
	Protocol        string
	List            time.Duration
	KeepEmpty       bool
	GRPCTLS         bool
	Credentials     nacos.Credentials
}

// DefaultSettings returns the defaults.
func DefaultSettings() Settings {
	return Settings{
		Namespace: nacos.DefaultNamespace, Groups: []string{nacos.DefaultGroup}, Suffix: nacos.DefaultSuffix, Protocol: nacos.DefaultProtocol, List: nacos.DefaultList,
	}
}

// Flags binds the settings.
func (s *Settings) Flags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&s.Addresses, "nacos", s.Addresses, "`addresses` of the servers of a Nacos registry (2.x or 3.x), separated by commas: HOST, HOST:PORT or https://HOST:PORT of the HTTP API. gRPC is on the port that is 1000 higher. One server is used at a time, and the next one if it fails. "+
		"Set it to watch the services of the registry")
	fs.StringVar(&s.Namespace, "nacos-namespace", s.Namespace, "`ID` of the Nacos namespace to watch. "+
		"Set it if the services are in another one")
	fs.StringSliceVar(&s.Groups, "nacos-groups", s.Groups, "`names` of the groups to watch, separated by commas; * for all groups, which needs the right to list them over HTTP, and does not work with r-nacos. "+
		"Set it if services are in other groups")
	fs.StringVar(&s.Credentials.UsernameFile, "nacos-username-file", s.Credentials.UsernameFile, "`file` with the name of an account that may read the namespace; read for each login. "+
		"Set it, with --nacos-password-file, if the registry wants a login")
	fs.StringVar(&s.Credentials.PasswordFile, "nacos-password-file", s.Credentials.PasswordFile, "`file` with the password of --nacos-username-file; read for each login")
	fs.StringSliceVar(&s.Ports, "nacos-ports", s.Ports, "`ports` that clients call, as NAME=PORT, separated by commas, where * in a name stands for any characters and a PORT alone is for all services; the first that matches counts. Without one, clients call the ports of the instances. "+
		"Set it so that the ports of a service stay when its instances move")
	fs.StringVar(&s.Instance, "instance", s.Instance, "unique `name` of what is watched: watchers with the same name publish as one source. The default is the ID of the Nacos namespace. "+
		"Set it if several registries, or groups of one namespace, are watched")
	fs.StringVar(&s.ObjectNamespace, "nacos-object-namespace", s.ObjectNamespace, "`namespace` of the mesh in which the services are. The default is the ID of the Nacos namespace. "+
		"Set it if policies and routes of another namespace are to count for them")
	fs.StringVar(&s.Suffix, "nacos-suffix", s.Suffix, "`end` of the hosts: a service is called SERVICE.GROUP.NAMESPACE.SUFFIX, with - for _. "+
		"Set it if a second registry has the same names")
	fs.StringVar(&s.Protocol, "nacos-protocol", s.Protocol, "`protocol` of services whose instances name none in their metadata: http, http2, grpc, https, tls, tcp, mongo, mysql or redis. "+
		"Set it if most services speak another one")
	fs.DurationVar(&s.List, "nacos-list", s.List, "`time` between two lists of all services, at least 1s: so late may a new service be. Changes of known services are pushed. "+
		"Raise it to lower the load of the servers")
	fs.BoolVar(&s.KeepEmpty, "nacos-keep-empty", s.KeepEmpty, "keep the last instances of a service that has none any more. "+
		"Set it if instances are often lost in the registry and not in fact")
	fs.BoolVar(&s.GRPCTLS, "nacos-grpc-tls", s.GRPCTLS, "use TLS for gRPC. "+
		"Set it if the servers have TLS for it (nacos.remote.server.grpc.sdk.tls.enableTls)")
	fs.StringVar(&s.Credentials.CAFile, "nacos-ca", s.Credentials.CAFile, "PEM `file` with the CAs of the servers' certificates, read for each connection. "+
		"Set it if this machine does not already trust them")
	fs.StringVar(&s.Credentials.CertFile, "nacos-cert", s.Credentials.CertFile, "PEM `file` with a certificate for the servers. Set it, with --nacos-key, if they want one of clients")
	fs.StringVar(&s.Credentials.KeyFile, "nacos-key", s.Credentials.KeyFile, "PEM `file` with the key of --nacos-cert")
}

// Check returns an error for each setting that makes no sense.
func (s *Settings) Check() error {
	var errs []error
	if len(s.Addresses) == 0 {
		errs = append(errs, process.Invalid("nacos", "is missing: give the address of a server, as nacos:8848"))
	}
	if s.List < time.Second {
		errs = append(errs, process.Invalid("nacos-list", "want 1s at least"))
	}
	if !s.GRPCTLS && s.Credentials.CertFile+s.Credentials.CAFile != "" && !s.overHTTPS() {
		errs = append(errs, process.Invalid("nacos-ca", "and --nacos-cert have no effect without --nacos-grpc-tls or an address with https://"))
	}
	_, err := watcher.PortRules("nacos-ports", s.Ports)
	errs = append(errs, err)
	if len(s.Addresses) > 0 && err == nil {
		if _, err := nacos.New(s.config()); err != nil {
			errs = append(errs, process.Invalid("nacos", "%w", err))
		}
	}
	return errors.Join(errs...)
}

func (s *Settings) overHTTPS() bool {
	for _, a := range s.Addresses {
		if strings.HasPrefix(a, "https://") {
			return true
		}
	}
	return false
}

// Verify checks the files that the settings name.
func (s *Settings) Verify() error {
	if err := s.Credentials.Verify(); err != nil {
		return process.Invalid("nacos", "%w", err)
	}
	return nil
}

func (s *Settings) config() nacos.Config {
	ports, _ := watcher.PortRules("nacos-ports", s.Ports) // Check has reported its errors
	return nacos.Config{
		Addresses: s.Addresses, Namespace: s.Namespace, Groups: s.Groups, ObjectNamespace: s.ObjectNamespace, Suffix: s.Suffix, List: s.List,
		KeepEmpty: s.KeepEmpty, TLS: s.GRPCTLS, Credentials: s.Credentials, Registry: registry.Settings{Ports: ports, Protocol: s.Protocol},
	}
}

// Shard returns the shard of the registry.
func (s *Settings) Shard() ident.Shard {
	return ident.Shard{Source: nacos.Source, Instance: cmp.Or(s.Instance, s.Namespace, nacos.DefaultNamespace)}
}

// Run watches until ctx is done.
func (s *Settings) Run(ctx context.Context, at watcher.Place) error {
	c := s.config()
	c.Status, c.Logger = registry.NewStatus(s.Shard()), at.Process.Log.With(process.Component, "watcher")
	w, err := nacos.New(c)
	if err != nil {
		return err
	}
	return at.Run(ctx, s.Shard(), c.Identity(), w, c.Status)
}
