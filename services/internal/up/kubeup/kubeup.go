package kubeup

import (
	"context"

	"k8s.io/klog/v2"

	"meshlog.dev/events"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/internal/up/watcherup"
	"meshlog.dev/services/watcher/kube"
)

// Options say for whom a cluster is watched.
type Options struct {
	Domain string
	// Holder names this process: stable over restarts, other than its twin's.
	Holder string
	// Connect connects to the bus, for a shard.
	Connect func(events.Shard) func(context.Context) (*bus.Conn, error)
	Process *process.Process
}

// Shard is that of the cluster.
func (s *Settings) Shard() events.Shard {
	return events.Shard{Source: kube.Source, Instance: s.Cluster}
}

// Run watches the cluster until ctx is done.
func Run(ctx context.Context, s *Settings, o Options) error {
	log := o.Process.Log.With(process.Component, "watcher")
	// What client-go says without having been asked: the process's log is
	// where to look for it.
	klog.SetSlogLogger(log)
	cfg, err := s.Config(log)
	if err != nil {
		return err
	}
	return run(ctx, cfg, o)
}

// run watches one cluster.
func run(ctx context.Context, cfg kube.Config, o Options) error {
	cfg.Metrics = kube.NewMetrics(cfg.Cluster)
	w, err := kube.New(cfg)
	if err != nil {
		return err
	}
	o.Process.Admin.Register(cfg.Metrics)
	shard := events.Shard{Source: kube.Source, Instance: cfg.Cluster}
	return watcherup.Run(ctx, watcherup.Options{
		Domain: o.Domain, Shard: shard, Holder: o.Holder, Watcher: w,
		Connect: o.Connect(shard), Process: o.Process,
	})
}
