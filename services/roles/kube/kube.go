package kube

import (
	"context"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/roles/watcher"
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

// Run watches the cluster and, with RemoteClusters, the clusters that Secrets name,
// until ctx is done.
func Run(ctx context.Context, s *Settings, o Options) error {
	log := o.Process.Log.With(process.Component, "watcher")
	// Parts of client-go log only to the global logger.
	klog.SetSlogLogger(log)
	cfg, err := s.Config(log)
	if err != nil {
		return err
	}
	cfg.Metrics = kube.NewMetrics(cfg.Cluster)
	w, err := kube.New(cfg)
	if err != nil {
		return err
	}
	stage := process.Stage{func(ctx context.Context) error { return run(ctx, cfg, w, o, false) }}
	if s.RemoteClusters != "" {
		limits := apiserver.DefaultLimits()
		limits.MaxRetry = remoteRetry
		others := clusters.Config{
			API: cfg.REST, Home: cfg.Cluster, Namespace: s.RemoteClusters, Logger: log, Limits: limits,
		}
		remote := newSupervisor(others, w, func(ctx context.Context, r clusters.Cluster) error {
			cfg := cfg
			cfg.Cluster, cfg.REST, cfg.Renew, cfg.Metrics = r.Name, rest.CopyConfig(r.REST), nil, kube.NewMetrics(r.Name)
			cfg.REST.QPS, cfg.REST.Burst = float32(s.QPS), s.Burst
			w, err := kube.New(cfg)
			if err != nil {
				return err
			}
			return run(ctx, cfg, w, o, true)
		})
		o.Process.Admin.Warn("other clusters", remote.known)
		stage = append(stage, remote.run)
	}
	return process.RunStages(ctx, stage)
}

// run publishes the objects of a cluster.
func run(ctx context.Context, cfg kube.Config, w *kube.Watcher, o Options, optional bool) error {
	o.Process.Admin.Register(cfg.Metrics)
	defer o.Process.Admin.Unregister(cfg.Metrics)
	return watcher.Run(ctx, watcher.Options{
		Domain: o.Domain, Shard: shard(cfg.Cluster), Holder: o.Holder, Watcher: w,
		Connect: o.Connect(shard(cfg.Cluster)), Process: o.Process, Optional: optional, LogShare: o.LogShare,
	})
}
