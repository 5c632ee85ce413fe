package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

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

// supervisor runs a watcher for each cluster that Secrets name. They know
// nothing of each other: one whose API server is gone, or that is removed,
// concerns no other one. What was said of a cluster that is removed stays on the
// log; to drop that is an operator's word.
type supervisor struct {
	others clusters.Config
	home   *kube.Watcher // of the cluster that has the Secrets
	watch  func(context.Context, clusters.Cluster) error

	waits   atomic.Pointer[error] // of known
	running map[string]*supervised
}

func newSupervisor(others clusters.Config, home *kube.Watcher, watch func(context.Context, clusters.Cluster) error) *supervisor {
	s := &supervisor{others: others, home: home, watch: watch, running: map[string]*supervised{}}
	s.wait(errors.New("being asked for"))
	return s
}

// wait takes in why it is not known yet which clusters there are; nil: it is.
func (s *supervisor) wait(why error) { s.waits.Store(&why) }

// known is an error while it is not known which clusters there are, so that none
// is watched. It may be called from any goroutine.
func (s *supervisor) known() error {
	if why := *s.waits.Load(); why != nil {
		return fmt.Errorf("not watched before the Secrets that name them are read: %w", why)
	}
	return nil
}

// run watches clusters until ctx is done.
func (s *supervisor) run(ctx context.Context) error {
	defer func() {
		for _, c := range s.running {
			c.cancel() // all, before any is waited for
		}
		for _, c := range s.running {
			<-c.done
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
			s.others.Logger.Warn("other clusters are not watched before the Secrets that name them are read", "namespace", s.others.Namespace, "error", found.Unread)
		}
	})
}

// follow has a watcher for each of the clusters, and for no other.
func (s *supervisor) follow(ctx context.Context, found []clusters.Cluster) {
	log := s.others.Logger
	for name, c := range s.running {
		if !slices.ContainsFunc(found, func(r clusters.Cluster) bool { return r.Name == name }) {
			c.stop()
			delete(s.running, name)
			log.Info("cluster is no longer watched: no Secret names it; its objects stay as they are", "cluster", name)
		}
	}
	for _, r := range found {
		c := s.running[r.Name]
		switch {
		case c == nil:
			log.Info("another cluster is watched", "cluster", r.Name, "api_server", r.REST.Host)
		case c.version == r.Version:
			continue
		default:
			c.stop()
			log.Info("cluster is reached in another way", "cluster", r.Name, "api_server", r.REST.Host)
		}
		s.running[r.Name] = start(ctx, r, log, s.watch)
	}
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
