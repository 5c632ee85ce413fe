package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"meshlog.dev/services/watcher/kube"
	"meshlog.dev/services/watcher/kube/clusters"
)

// restartPause is the pause before a watcher that failed is restarted.
const restartPause = 5 * time.Second

// supervised is a running watcher of a cluster.
type supervised struct {
	version string
	stop    func() // returns when the watcher has ended
}

// supervisor runs a watcher for each cluster that Secrets name. The watchers are
// independent: a cluster that is down or removed does not affect the others. The
// objects of a removed cluster stay on the log until an operator drops them.
type supervisor struct {
	others clusters.Config
	home   *kube.Watcher // watcher of the cluster with the Secrets
	watch  func(context.Context, clusters.Cluster) error

	waits   atomic.Pointer[error] // see wait
	running map[string]supervised
}

func newSupervisor(others clusters.Config, home *kube.Watcher, watch func(context.Context, clusters.Cluster) error) *supervisor {
	s := &supervisor{others: others, home: home, watch: watch, running: map[string]supervised{}}
	s.wait(errors.New("reading them"))
	return s
}

// wait stores why the clusters are unknown; nil means that they are known.
func (s *supervisor) wait(why error) { s.waits.Store(&why) }

// known returns an error while the clusters are unknown, so that none is watched. It
// may be called concurrently.
func (s *supervisor) known() error {
	if why := *s.waits.Load(); why != nil {
		return fmt.Errorf("not watched until the Secrets that name them are read: %w", why)
	}
	return nil
}

// run watches clusters until ctx is done.
func (s *supervisor) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel() // of all watchers, before the first wait
		for _, c := range s.running {
			c.stop()
		}
	}()
	warned := false
	return clusters.Watch(ctx, s.others, func(found clusters.Found) {
		s.wait(found.Unread)
		s.home.Tell("other clusters", found.Diagnostics)
		switch {
		case found.Unread == nil:
			s.follow(ctx, found.Clusters)
		case !warned:
			warned = true
			s.others.Logger.Warn("other clusters are not watched until the Secrets that name them are read", "namespace", s.others.Namespace, "error", found.Unread)
		}
	})
}

// follow starts, restarts and stops watchers so that exactly these clusters are
// watched.
func (s *supervisor) follow(ctx context.Context, found []clusters.Cluster) {
	log := s.others.Logger
	for name, c := range s.running {
		if !slices.ContainsFunc(found, func(r clusters.Cluster) bool { return r.Name == name }) {
			c.stop()
			delete(s.running, name)
			log.Info("stopped watching a cluster that no Secret names any more; its objects stay as they are", "cluster", name)
		}
	}
	for _, r := range found {
		c, known := s.running[r.Name]
		switch {
		case !known:
			log.Info("watching another cluster", "cluster", r.Name, "api_server", r.REST.Host)
		case c.version == r.Version:
			continue
		default:
			c.stop()
			log.Info("restarting the watcher of a cluster with a changed kubeconfig", "cluster", r.Name, "api_server", r.REST.Host)
		}
		s.running[r.Name] = start(ctx, r, log, s.watch)
	}
}

// start watches a cluster until stop.
func start(ctx context.Context, r clusters.Cluster, log *slog.Logger, watch func(context.Context, clusters.Cluster) error) supervised {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			err := watch(ctx, r)
			if ctx.Err() != nil {
				return
			}
			log.Error("the watcher of a cluster failed; restarting", "cluster", r.Name, "error", err, "again_in", restartPause)
			select {
			case <-time.After(restartPause):
			case <-ctx.Done():
				return
			}
		}
	})
	return supervised{r.Version, func() {
		cancel()
		running.Wait()
	}}
}
