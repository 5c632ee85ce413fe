package kubeup

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"meshlog.dev/services/internal/model"
	"meshlog.dev/services/watcher/kube"
	"meshlog.dev/services/watcher/kube/clusters"
)

// restartPause is how long a cluster rests whose watcher has ended by itself.
const restartPause = 5 * time.Second

// supervised is a cluster that is watched.
type supervised struct {
	version string
	cancel  context.CancelFunc
	done    chan struct{} // closed once nothing of it runs
}

func (c *supervised) stop() {
	c.cancel()
	<-c.done
}

// supervise runs a watcher for each cluster that Secrets name, until ctx is
// done. They know nothing of each other: one whose API server is gone, or that
// is removed, concerns no other one. What was said of a cluster that is removed
// stays on the log; to drop that is an operator's word.
func supervise(ctx context.Context, others clusters.Config, home *kube.Watcher, watch func(context.Context, clusters.Cluster) error) error {
	log := others.Logger
	running := map[string]*supervised{}
	defer func() {
		for _, c := range running {
			c.cancel() // all, before any is waited for
		}
		for _, c := range running {
			<-c.done
		}
	}()
	return clusters.Watch(ctx, others, func(found []clusters.Cluster, ds []model.Diagnostic) {
		home.Tell("other clusters", ds)
		for name, c := range running {
			if !slices.ContainsFunc(found, func(r clusters.Cluster) bool { return r.Name == name }) {
				c.stop()
				delete(running, name)
				log.Info("cluster is no longer watched: no Secret names it; its objects stay as they are", "cluster", name)
			}
		}
		for _, r := range found {
			c := running[r.Name]
			switch {
			case c == nil:
				log.Info("another cluster is watched", "cluster", r.Name, "api_server", r.REST.Host)
			case c.version == r.Version:
				continue
			default:
				c.stop()
				log.Info("cluster is reached in another way", "cluster", r.Name, "api_server", r.REST.Host)
			}
			running[r.Name] = start(ctx, r, log, watch)
		}
	})
}

// start watches a cluster until it is stopped.
func start(ctx context.Context, r clusters.Cluster, log *slog.Logger, watch func(context.Context, clusters.Cluster) error) *supervised {
	ctx, cancel := context.WithCancel(ctx)
	c := &supervised{version: r.Version, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		for {
			err := watch(ctx, r)
			if ctx.Err() != nil {
				return
			}
			log.Error("watching a cluster ended; beginning anew", "cluster", r.Name, "error", err, "again_in", restartPause)
			select {
			case <-time.After(restartPause):
			case <-ctx.Done():
				return
			}
		}
	}()
	return c
}
