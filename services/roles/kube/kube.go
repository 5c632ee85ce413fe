package kube

import (
	"context"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/keyexchange/keyring"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/roles/watcher"
	"meshlog.dev/services/watcher/keeper"
	"meshlog.dev/services/watcher/kube"
	"meshlog.dev/services/watcher/kube/apiserver"
	"meshlog.dev/services/watcher/kube/clusters"
)

// Options connect the watchers with their process.
type Options struct {
	Domain string
	// Holder names this process. It is stable over restarts and different from its
	// standby's.
	Holder string
	// Connect returns the function that connects to the bus for a shard.
	Connect func(ident.Shard) func(context.Context) (*bus.Conn, error)
	Process *process.Process
	// LogShare is how much of the log the records of a cluster may take, in percent;
	// 0: the default.
	LogShare int
	// Optional: the process is ready while the cluster is down.
	Optional bool
	// Ring has the xkey of the watchers: with it, and the key of the HMACs, they answer
	// requests for private keys (KEY-3).
	Ring keyring.Ring
}

// Shard returns the shard of the cluster.
func (s *Settings) Shard() ident.Shard { return shard(s.Cluster) }

// Role returns the role of the process on the bus: it watches one cluster, or also
// clusters that appear while it runs.
func (s *Settings) Role() bus.Role {
	if s.RemoteClusters != "" {
		return bus.Watchers(kube.Source)
	}
	return bus.Watcher(s.Shard())
}

func shard(cluster string) ident.Shard {
	return ident.Shard{Source: kube.Source, Instance: cluster}
}

// remoteRetry limits the pause between two reads of the Secrets of other clusters,
// which are not watched before the first successful read.
const remoteRetry = 2 * time.Second

// Cluster is a cluster to watch, and the clusters that its Secrets name.
type Cluster struct {
	settings *Settings
	options  Options
	config   kube.Config
	home     watched
}

// watched is the watcher of one cluster; keys is nil if it gives none.
type watched struct {
	*kube.Watcher
	keys *watcher.Keys
}

// New returns a cluster. It does not contact the API server.
func New(s *Settings, o Options) (*Cluster, error) {
	c := &Cluster{settings: s, options: o}
	log := o.Process.Log.With(process.Component, "watcher")
	var err error
	if c.config, err = s.Config(log); err != nil {
		return nil, err
	}
	c.config.Metrics = kube.NewMetrics(c.config.Cluster)
	c.home, err = c.watcher(c.config)
	return c, err
}

// Keys answers for the keys of the cluster's Secrets; nil: the cluster gives none. Keys of
// the other clusters are given over the bus only.
func (c *Cluster) Keys() *watcher.Keys { return c.home.keys }

func (c *Cluster) watcher(cfg kube.Config) (watched, error) {
	w, err := kube.New(cfg)
	if err != nil || c.options.Ring.File == "" || len(cfg.Secrets.Key) == 0 {
		return watched{Watcher: w}, err
	}
	return watched{w, &watcher.Keys{Ring: c.options.Ring, Keeper: keeper.Keeper{Source: w, Options: cfg.Secrets}}}, nil
}

// Run watches the cluster and, with RemoteClusters, the clusters that Secrets name,
// until ctx is done.
func (c *Cluster) Run(ctx context.Context) error {
	// Parts of client-go log only to the global logger.
	klog.SetSlogLogger(c.config.Logger)
	stage := process.Stage{func(ctx context.Context) error { return c.run(ctx, c.config, c.home, c.options.Optional) }}
	if c.settings.RemoteClusters != "" {
		limits := apiserver.DefaultLimits()
		limits.MaxRetry = remoteRetry
		others := clusters.Config{
			API: c.config.REST, Home: c.config.Cluster, Namespace: c.settings.RemoteClusters, Logger: c.config.Logger, Limits: limits,
		}
		remote := newSupervisor(others, c.home.Watcher, c.runRemote)
		c.options.Process.Admin.Warn("other clusters", remote.known)
		stage = append(stage, remote.run)
	}
	return process.RunStages(ctx, stage)
}

// runRemote watches another cluster.
func (c *Cluster) runRemote(ctx context.Context, r clusters.Cluster) error {
	cfg := c.config
	cfg.Cluster, cfg.REST, cfg.Renew, cfg.Metrics = r.Name, rest.CopyConfig(r.REST), nil, kube.NewMetrics(r.Name)
	cfg.REST.QPS, cfg.REST.Burst = float32(c.settings.QPS), c.settings.Burst
	w, err := c.watcher(cfg)
	if err != nil {
		return err
	}
	return c.run(ctx, cfg, w, true)
}

// run publishes the objects of a cluster, and answers for the keys of its Secrets.
func (c *Cluster) run(ctx context.Context, cfg kube.Config, w watched, optional bool) error {
	o := c.options
	o.Process.Admin.Register(cfg.Metrics)
	defer o.Process.Admin.Unregister(cfg.Metrics)
	return watcher.Run(ctx, watcher.Options{
		Domain: o.Domain, Shard: shard(cfg.Cluster), Holder: o.Holder, Watcher: w.Watcher, Keys: w.keys,
		Connect: o.Connect(shard(cfg.Cluster)), Process: o.Process, Optional: optional, LogShare: o.LogShare,
	})
}
