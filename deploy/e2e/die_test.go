package e2e

import (
	"context"
	"fmt"
	"testing"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/e2e/shop"
	"meshlog.dev/deploy/testkit/program"
)

// All frontends are restarted while every other process is dead: they serve from
// their files, and Envoy does not notice.
func TestFrontendsRestartAlone(t *testing.T) {
	for name, delta := range modes {
		t.Run(name, func(t *testing.T) {
			f := startWith(t, apart(1, 2), rig.EnvoyConfig{Node: node, Cluster: "demo", Delta: delta})
			f.shift(0, 100)
			f.during("all frontends restart with everything else down", func() {
				f.onlyFrontends()
				f.share(shop.V2, 100)
				f.restartFrontends()
				f.share(shop.V2, 100)
			})
			f.nothingRejected()
		})
	}
}

// onlyFrontends kills every other process.
func (f *fixture) onlyFrontends() {
	f.mesh.Watcher.Kill()
	for _, s := range f.mesh.Builders {
		s.Kill()
	}
	f.mesh.NATS.Kill()
}

// restartFrontends stops all frontends, restarts them once Envoy has noticed, and
// waits until Envoy is connected again.
func (f *fixture) restartFrontends() {
	f.Helper()
	for _, s := range f.mesh.Frontends {
		f.must(s.Stop())
	}
	f.must(f.envoy.Connected(f.ctx, false))
	for _, s := range f.mesh.Frontends {
		f.must(s.Restart())
	}
	for _, s := range f.mesh.Frontends {
		f.must(s.Ready(f.ctx))
	}
	f.back(node)
}

// back waits until a proxy is connected to a frontend, and returns that frontend.
func (f *fixture) back(proxy string) (to *rig.Server) {
	f.Helper()
	f.must(program.Until(f.ctx, proxy+" to be connected", func(ctx context.Context) error {
		for _, s := range f.mesh.Frontends {
			var r rig.FrontendReport
			if s.Running() != nil || s.Debug(ctx, "frontend", &r) != nil {
				continue // dead, or about to die
			}
			for _, p := range r.Proxies {
				if p.ID == proxy && len(p.Types) > 0 {
					to = s
					return nil
				}
			}
		}
		return fmt.Errorf("it is connected to none of %d frontends", len(f.mesh.Frontends))
	}))
	return to
}

// The leading builder is killed: a standby takes over, and a change arrives.
func TestBuilderLeaderKilled(t *testing.T) {
	f := start(t, apart(2, 1))
	f.shift(50, 50)
	f.during("the leader is killed", func() {
		leader := f.leader()
		leader.Kill()
		f.shift(0, 100)
		f.share(shop.V2, 100)

		// It comes back as a standby, and compares its work with the leader's.
		f.must(leader.Restart())
		f.must(leader.Ready(f.ctx))
		f.shift(100, 0)
		f.share(shop.V1, 100)
	})
	f.nothingRejected()
}

// leader waits until one builder leads and another has compared its work.
func (f *fixture) leader() *rig.Server {
	f.Helper()
	var leader *rig.Server
	f.must(program.Until(f.ctx, "a leader and a warm standby", func(ctx context.Context) error {
		leader = nil
		var compared uint64
		for _, s := range f.mesh.Builders {
			var r rig.BuilderReport
			if err := s.Debug(ctx, "builder", &r); err != nil {
				return err
			}
			if r.Error != "" {
				return fmt.Errorf("%s: %s", r.Builder, r.Error)
			}
			if r.Leader {
				leader = s
			} else {
				compared += r.Compared
			}
		}
		if leader == nil || compared == 0 {
			return fmt.Errorf("leader %v, %d versions compared", leader, compared)
		}
		return nil
	}))
	return leader
}

// The watcher is killed, and a file changes before it is back: no object is
// removed meanwhile, and the change arrives.
func TestWatcherKilled(t *testing.T) {
	f := start(t, apart(1, 1))
	f.shift(50, 50)
	f.during("the watcher is killed", func() {
		f.mesh.Watcher.Kill()
		f.weigh(0, 100)
		f.share(shop.V2, 50) // the watcher has not seen the change
		f.must(f.mesh.Watcher.Restart())
		f.must(f.mesh.Watcher.Ready(f.ctx))
		f.acked(rig.RouteConfiguration)
		f.share(shop.V2, 100)
		f.shift(100, 0)
		f.share(shop.V1, 100)
	})
	f.nothingRejected()
}

// The NATS server is killed and comes back: a change made meanwhile arrives.
func TestNATSKilled(t *testing.T) {
	f := start(t, apart(2, 2))
	f.shift(50, 50)
	f.during("the NATS server is killed", func() {
		f.mesh.NATS.Kill()
		f.weigh(0, 100)
		f.share(shop.V2, 50) // the watcher cannot publish the change
		f.must(f.mesh.NATS.Restart(f.ctx))
		f.acked(rig.RouteConfiguration)
		f.share(shop.V2, 100)
	})
	f.nothingRejected()
}

// `meshlog up` is killed, with the bus inside it, and comes back: a change made
// meanwhile arrives.
func TestUpKilled(t *testing.T) {
	f := start(t, rig.Up)
	f.shift(50, 50)
	f.during("meshlog up is killed", func() {
		up := f.mesh.Frontends[0]
		up.Kill()
		f.weigh(0, 100)
		f.share(shop.V2, 50) // the watcher has not seen the change
		f.must(up.Restart())
		f.must(up.Ready(f.ctx))
		f.acked(rig.RouteConfiguration)
		f.share(shop.V2, 100)
	})
	f.nothingRejected()
}
