// Package up runs all roles of meshlog in one process.
//
//	DIR ──────> watcher/file ──> log ──> builder ──> version chain ──> frontend ──> Envoys
//	CLUSTER ──> watcher/kube ──>  │                       │
//	            policy ────────>  └──── embedded bus ─────┘
//	            ca (--ca) ─────>
//	ISSUERS ───> watcher/jwks ─>
//	REGISTRIES > watcher/... ────>    console <─ version chain, log, reports
//
// Each role has its own account and connection on the bus, its own file and its own
// reports.
// Packages roles/builder, roles/frontend, roles/watcher, roles/kube, roles/jwks, roles/sources
// and roles/ca run it in the same way in a process of its own.
package up

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"slices"

	"github.com/spf13/pflag"

	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/busauth"
	"meshlog.dev/services/internal/keyexchange/keyring"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/roles/builder"
	"meshlog.dev/services/roles/ca"
	"meshlog.dev/services/roles/frontend"
	"meshlog.dev/services/roles/jwks"
	"meshlog.dev/services/roles/kube"
	"meshlog.dev/services/roles/sources"
	watcherroles "meshlog.dev/services/roles/watcher"
	"meshlog.dev/services/watcher"
)

// Settings of `meshlog up`.
type Settings struct {
	// Directories of files to watch; without Config, none.
	watcherroles.Directories
	// Kube is the cluster to watch, if it has a Kubeconfig; `up` looks for no
	// other credentials.
	Kube kube.Settings
	// Sources are the files with further sources to watch, such as registries.
	Sources sources.Settings
	// Data is the data directory, created if it is missing: nats/ is the bus,
	// builder/ and frontend/ hold a file each, keys/ the sealed private keys, bus has
	// the address of the bus, auth/ the keys of its users.
	Data string
	// BusListen is the address of the bus, for the command line and for separate
	// processes; port 0 takes a free one.
	BusListen string
	// BusWatchers are the shards, as SOURCE/INSTANCE, of watchers that run as other
	// processes on this bus.
	BusWatchers []string
	Frontend    frontend.Settings
	Builder     builder.Settings
	Watcher     watcherroles.Settings
	JWKS        jwks.Settings
	// Console shows the mesh in a browser; nil: nothing does.
	Console Console
	// CA: the certificate authority runs too, with the settings in Authority.
	CA        bool
	Authority ca.Settings

	prepared *ca.Prepared  // nil without CA, and before Run
	named    []ident.Shard // Run: the only sources, which configSources name
}

// Console is the settings of a web console, and runs it. roles/console has the one of
// cmd/meshlog, which gives it: the console uses packages of commands, whose tests run `up`.
type Console interface {
	process.Settings
	// Open listens; it returns nil if the settings want no console.
	Open(*slog.Logger) (net.Listener, error)
	// Role returns its role on the bus.
	Role() bus.Role
	// Run serves the mesh of a domain until ctx is done, and closes the listener. It keeps its
	// files in a data directory.
	Run(ctx context.Context, domain, data string, l net.Listener, connect func(context.Context) (*bus.Conn, error), p *process.Process) error
}

// DefaultSettings returns settings without Data, without a source to watch and without a console.
func DefaultSettings() *Settings {
	return &Settings{
		BusListen: "127.0.0.1:0", Kube: kube.DefaultSettings(), Frontend: frontend.DefaultSettings(), Builder: builder.DefaultSettings(),
		Sources: sources.DefaultSettings(), Watcher: watcherroles.DefaultSettings(), JWKS: jwks.DefaultSettings(), Authority: ca.UpSettings(),
	}
}

// Flags binds the settings.
func (s *Settings) Flags(fs *pflag.FlagSet) {
	s.Directories.Flags(fs)
	fs.StringVar(&s.Data, "data", s.Data, "data `directory`, created if it is missing. It holds the log and all published versions: keep it over restarts")
	fs.StringVar(&s.BusListen, "bus-listen", s.BusListen, "`address` of the bus, for the command line and other processes. Port 0 takes a free port, which DATA/bus names. "+
		"Change it if processes of other machines join, each with the key of its role, DATA/auth/ROLE.nk, as --bus-nkey")
	fs.StringSliceVar(&s.BusWatchers, "bus-watcher", s.BusWatchers, "`SOURCE/INSTANCE` of a watcher that runs as another process on this bus; several are separated by commas. "+
		"Set it so that the bus has a user for it, with its key in DATA/auth")
	s.Kube.Flags(fs)
	fs.Lookup("kubeconfig").Usage = "kubeconfig `file` with the API server's address and credentials. " +
		"Set it to watch a cluster, with or without a directory in --config"
	s.Sources.Flags(fs)
	s.Frontend.Flags(fs)
	fs.Lookup("seal-key-file").Usage += ". It also seals the key of the certificate authority, with --ca"
	s.Builder.Flags(fs)
	s.Watcher.Flags(fs)
	s.JWKS.Flags(fs)
	if s.Console != nil {
		s.Console.Flags(fs)
	}
	fs.BoolVar(&s.CA, "ca", s.CA, "run the certificate authority of the mesh too, with a root of its own; workloads join with tokens, which meshlog ca token makes. "+
		"Set it, with --seal-key-file, so that workloads get certificates for their identity")
	s.Authority.UpFlags(fs)
	fs.StringSliceVar(&s.Frontend.Serving.Names, "xds-names", nil, "`names` by which proxies reach the xDS port, separated by commas. The certificate authority issues the certificate of --tls-listen with them, and renews it without a restart, in place of --tls-cert. Needs --ca. "+
		"Set it so that agents trust the frontend by the roots of the mesh")
}

// authority returns the settings of the certificate authority.
func (s *Settings) authority() *ca.Settings {
	a := s.Authority
	a.SealKeyFile = s.Frontend.SealKeyFile
	a.KeyFile = cmp.Or(a.KeyFile, filepath.Join(s.Data, "ca", "ca.key"))
	return &a
}

// Check returns what is missing.
func (s *Settings) Check() error {
	var config error
	switch {
	case s.Config != "" || s.Certificates != "":
		config = s.Directories.Check(s.Kube.Secrets)
	case s.Kube.Kubeconfig == "" && s.Sources.File == "" && s.Sources.MeshConfig == "":
		config = process.Invalid("config", "is missing: give the directory of YAML to serve, the cluster to watch with --kubeconfig, a list of sources with --sources, or a MeshConfig with --mesh-config")
	}
	var authority error
	if s.CA {
		authority = s.authority().Check()
	} else if len(s.Frontend.Serving.Names) > 0 {
		authority = process.Invalid("xds-names", "needs the certificate authority: give --ca")
	}
	var console error
	if s.Console != nil {
		console = s.Console.Check()
	}
	_, watchers := s.roles()
	return errors.Join(config, s.checkSources(), watchers, authority, process.CheckData(s.Data), s.Kube.Check(), s.Revision.Check(), s.Frontend.Check(), s.Builder.Check(), s.Watcher.Check(), s.JWKS.Check(), console)
}

// checkSources returns an error for a setting that has no effect because configSources of
// --mesh-config name the only sources.
func (s *Settings) checkSources() error {
	s.shareCluster()
	if s.Sources.File == "" && s.Sources.MeshConfig == "" {
		return nil
	}
	named, err := s.Sources.ConfigSources()
	if err != nil || len(named) == 0 {
		return err
	}
	errs := []error{s.Sources.Check()}
	unused := func(setting, value, instead string) {
		if value != "" {
			errs = append(errs, process.Invalid(setting, "has no effect: configSources of %s name the only sources; %s", s.Sources.MeshConfig, instead))
		}
	}
	unused("config", s.Config, "add fs:///DIR there, or remove the setting")
	if !slices.Contains(named, s.Kube.Shard()) {
		unused("kubeconfig", s.Kube.Kubeconfig, "add k8s:// there, or remove the setting")
	}
	return errors.Join(errs...)
}

// shareCluster gives the settings of the cluster to configSources.
func (s *Settings) shareCluster() {
	s.Kube.Revision = s.Revision
	s.Sources.Cluster = s.Kube
}

// Verify checks the directories and files that the settings name, and writes the
// problems of documents to w.
func (s *Settings) Verify(ctx context.Context, w io.Writer) error {
	var directory, cluster, authority error
	if s.Config != "" {
		directory = s.Directories.Verify(ctx, s.Kube.Secrets, w)
	}
	if s.Kube.Kubeconfig != "" {
		cluster = s.Kube.Verify()
	}
	if s.CA {
		authority = s.authority().Verify()
	}
	return errors.Join(directory, cluster, authority, process.VerifyData(s.Data), s.Frontend.Verify(), s.JWKS.Verify(), s.Sources.Verify(ctx, w))
}

// roles returns the users of the bus: a role for each part of this process, for the
// command line, and for watchers in other processes.
func (s *Settings) roles() ([]bus.Role, error) {
	all := []bus.Role{bus.Builder(), bus.Frontend(), bus.Operator(), bus.Console()}
	add := func(r bus.Role) {
		if !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	for _, shard := range []ident.Shard{ownShard, fileShard, jwks.Shard} {
		add(bus.Watcher(shard))
	}
	if s.Kube.Kubeconfig != "" {
		add(s.Kube.Role())
		add(bus.Observer()) // of kube-events
	}
	if s.Sources.File != "" || s.Sources.MeshConfig != "" {
		for _, r := range sources.Roles() {
			add(r)
		}
	}
	if s.CA {
		add(bus.Watcher(ca.Shard))
	}
	var errs []error
	for _, w := range s.BusWatchers {
		r, err := bus.ParseWatcher(w)
		if err != nil {
			errs = append(errs, process.Invalid("bus-watcher", "%v", err))
			continue
		}
		add(r)
	}
	return all, errors.Join(errs...)
}

// The shards of this process, besides clusters.
var (
	ownShard  = ident.Shard{Source: world.DefaultsSource, Instance: "default"}
	fileShard = ident.Shard{Source: "file", Instance: "default"}
)

// id names each role of the process: there is one of each on a data directory.
const id = "up"

// Run runs the bus and all roles until ctx is done.
func Run(ctx context.Context, p *process.Process, s *Settings) error {
	s.shareCluster()
	var err error
	if s.named, err = s.Sources.ConfigSources(); err != nil {
		return err
	}
	if s.CA {
		if s.prepared, err = s.authority().Prepare(p); err != nil {
			return err
		}
		if names := s.Frontend.Serving.Names; len(names) > 0 {
			if s.Frontend.TLS.Issued, err = s.prepared.ServeXDS(names); err != nil {
				return err
			}
		}
	}
	// Listen first: a port in use is reported before the log is changed.
	ports, err := s.Frontend.Open()
	if err != nil {
		return err
	}
	defer ports.Close()
	console, err := s.openConsole(p)
	if err != nil {
		return err
	}
	defer console.close()

	// The bus is a NATS server in this process, on DATA/nats. It ends last.
	if err := free(s.BusListen); err != nil {
		return err
	}
	roles, err := s.roles()
	if err != nil {
		return err
	}
	server, err := bus.StartServer(bus.ServerOptions{
		Dir: s.Data, Listen: s.BusListen, Accounts: busauth.Accounts(process.DefaultDomain, roles...), Log: p.Log.With(process.Component, "bus"),
	})
	if err != nil {
		return process.DataError(err)
	}
	defer server.Close()
	connect := func(role bus.Role, name string) func(context.Context) (*bus.Conn, error) {
		return func(context.Context) (*bus.Conn, error) {
			return bus.Connect(bus.ConnectOptions{Server: server, Role: role, Name: name, Log: p.Log.With(process.Component, "bus", "connection", name)})
		}
	}

	sources, keepers, err := s.sources(p, connect)
	if err != nil {
		return err
	}
	keys, err := s.keys(keepers)
	if err != nil {
		return err
	}

	p.Log.Info("up", append(ports.Attrs(), "config", s.Config, "kubeconfig", s.Kube.Kubeconfig, "sources", s.Sources.File, "mesh_config", s.Sources.MeshConfig, "data", s.Data, "bus", server.URL())...)
	return process.RunStages(ctx,
		process.Stage{func(ctx context.Context) error { return console.run(ctx, connect) }},
		// version chain -> frontend -> Envoys. It drains first: while its
		// streams end, everything behind it is still there.
		process.Stage{func(ctx context.Context) error {
			return frontend.Run(ctx, frontend.Options{
				Domain: process.DefaultDomain, ID: id, Data: s.Data, Ports: ports,
				Connect: connect(bus.Frontend(), "frontend"), Keys: keys, Limits: s.Frontend.Limits, Process: p,
			})
		}},
		// log -> builder -> version chain. The leader, and the only one.
		process.Stage{func(ctx context.Context) error {
			return builder.Run(ctx, builder.Options{
				Domain: process.DefaultDomain, ID: id, Data: s.Data, Replicas: 1,
				Settings: s.Builder, Connect: connect(bus.Builder(), "builder"), Process: p,
			})
		}},
		// sources -> watchers -> log.
		sources,
	)
}

// connector connects to the bus in a role, under a name.
type connector func(role bus.Role, name string) func(context.Context) (*bus.Conn, error)

// keys returns how the frontend gets private keys: from watchers of this process by a
// function call (KEY-7), and from those of others over the bus.
func (s *Settings) keys(keepers map[ident.Shard]frontend.Ask) (frontend.Keys, error) {
	secrets, err := s.Kube.Secrets.Options()
	if err != nil {
		return frontend.Keys{}, err
	}
	sealed, err := s.Frontend.SealKey()
	return frontend.Keys{Ring: s.ring(bus.Frontend()), Keepers: keepers, Sums: secrets.Key, Seal: sealed}, err
}

// ring returns the files of the key exchange of a role, which the bus writes.
func (s *Settings) ring(r bus.Role) keyring.Ring {
	name, _ := r.ExchangeKeyName()
	return keyring.Ring{File: filepath.Join(s.Data, "auth", name)}
}

// sources returns the watchers of the directory, the cluster and the policy, and those of
// them that give private keys.
func (s *Settings) sources(p *process.Process, connect connector) (all process.Stage, keepers map[ident.Shard]frontend.Ask, err error) {
	keepers = map[ident.Shard]frontend.Ask{}
	var required []*configv1.RequiredSource
	connectAs := func(shard ident.Shard) func(context.Context) (*bus.Conn, error) {
		return connect(bus.Watcher(shard), "watcher "+shard.String())
	}
	watch := func(shard ident.Shard, w watcher.Watcher, keys *watcherroles.Keys) {
		all = append(all, func(ctx context.Context) error {
			return watcherroles.Run(ctx, watcherroles.Options{
				Domain: process.DefaultDomain, Shard: shard, Holder: id, Watcher: w, Connect: connectAs(shard), Process: p,
				LogShare: s.Watcher.LogShare, Keys: keys,
			})
		})
	}
	// AcceptPartial: an invalid file, or a kind without permission, withholds only
	// its own objects.
	if s.Config != "" {
		required = append(required, &configv1.RequiredSource{Source: fileShard.Source, Instance: fileShard.Instance, AcceptPartial: true})
		files, err := s.Directories.Watcher(s.Kube.Secrets)
		if err != nil {
			return nil, nil, err
		}
		keys, err := s.Directories.Keys(s.Kube.Secrets, files, s.ring(bus.Watcher(fileShard)))
		if err != nil {
			return nil, nil, err
		}
		if keys != nil {
			keepers[fileShard] = keys.Ask
		}
		watch(fileShard, files, keys)
	}
	if s.Kube.Kubeconfig != "" && len(s.named) == 0 {
		shard := s.Kube.Shard()
		required = append(required, &configv1.RequiredSource{Source: shard.Source, Instance: shard.Instance, AcceptPartial: true})
		cluster, err := kube.New(&s.Kube, kube.Options{
			Domain: process.DefaultDomain, Holder: id, Connect: connectAs, Process: p, LogShare: s.Watcher.LogShare, Ring: s.ring(s.Kube.Role()),
		})
		if err != nil {
			return nil, nil, err
		}
		if keys := cluster.Keys(); keys != nil {
			keepers[shard] = keys.Ask
		}
		all = append(all, cluster.Run)
	}
	if s.Sources.MeshConfig != "" {
		for _, shard := range sources.Near(s.named) {
			required = append(required, &configv1.RequiredSource{Source: shard.Source, Instance: shard.Instance, AcceptPartial: true})
		}
	}
	if s.Sources.File != "" || s.Sources.MeshConfig != "" { // no other is required: a registry that is down delays no version (AGG-8)
		all = append(all, func(ctx context.Context) error {
			return s.Sources.Run(ctx, sources.Options{
				Domain: process.DefaultDomain, Holder: id, Process: p, LogShare: s.Watcher.LogShare, Own: s.shards(),
				Connect: func(shard ident.Shard, _ func(bus.ConnectOptions) bus.ConnectOptions) func(context.Context) (*bus.Conn, error) {
					return connectAs(shard)
				},
			})
		})
	}
	if s.CA {
		required = append(required, &configv1.RequiredSource{Source: ca.Shard.Source, Instance: ca.Shard.Instance})
		all = append(all, func(ctx context.Context) error {
			return s.authority().Run(ctx, ca.Options{Domain: process.DefaultDomain, ID: id, Connect: connectAs(ca.Shard), Process: p, Prepared: s.prepared})
		})
	}
	all = append(all, func(ctx context.Context) error {
		return s.JWKS.Run(ctx, jwks.Options{
			Domain: process.DefaultDomain, Holder: id, Connect: connectAs(jwks.Shard), Process: p, LogShare: s.Watcher.LogShare, Lazy: true,
		})
	})
	policy, err := newPolicySource(append(required, &configv1.RequiredSource{Source: ownShard.Source, Instance: ownShard.Instance})...)
	if err != nil {
		return nil, nil, err
	}
	watch(ownShard, policy, nil)
	return all, keepers, nil
}

// shards returns what this process watches without the list of sources.
func (s *Settings) shards() []ident.Shard {
	all := []ident.Shard{ownShard}
	if s.Config != "" {
		all = append(all, fileShard)
	}
	if s.Kube.Kubeconfig != "" && len(s.named) == 0 {
		all = append(all, s.Kube.Shard())
	}
	return all
}

// free returns an error if another process listens on addr.
func free(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("bus: %w; give another address with --bus-listen", err)
	}
	return l.Close()
}
