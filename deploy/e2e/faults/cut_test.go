//go:build faults && linux

package faults

import (
	"context"
	"errors"
	"testing"
	"time"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/program"
)

// The network is cut silently between any two parts, and heals.
func TestNetworkCut(t *testing.T) {
	network, err := rig.NewNetwork()
	must(t, err)
	t.Cleanup(func() {
		if err := network.Close(); err != nil {
			t.Error(err)
		}
	})
	m := start(t, onThree("", network, 2, 1))
	t.Cleanup(func() { must(t, network.Heal()) }) // before the processes are asked for their output

	nats := []string{"nats-1", "nats-2", "nats-3"}
	cut := func(t *testing.T, some, others []string) {
		for _, a := range some {
			for _, b := range others {
				if a != b {
					must(t, network.Cut(a, b))
				}
			}
		}
	}
	heal := func(t *testing.T) { must(t, network.Heal()) }
	leader := func(t *testing.T) string { l, _ := m.leader(t); return l.Name }
	standby := func(t *testing.T) string { _, s := m.leader(t); return s.Name }
	named := func(name string) func(*testing.T) string { return func(*testing.T) string { return name } }
	streams := func(t *testing.T) string {
		n, err := m.Cluster.Leader(m.ctx, rig.Events)
		must(t, err)
		return n.Name
	}

	// Processes are cut off from the whole bus: for a moment, and long enough to be
	// noticed.
	for _, c := range []struct {
		what    string
		part    func(*testing.T) string
		goesOn  bool // changes continue meanwhile
		lasting time.Duration
	}{
		{"the watcher, briefly", named("watcher"), false, 3 * time.Second},
		{"the watcher, until its twin is active", named("watcher"), true, 0},
		{"the twin", named("twin-1"), true, noticed},
		{"the leader, briefly", leader, false, 3 * time.Second},
		{"the leader, until the standby leads", leader, true, noticed},
		{"the standby", standby, true, noticed},
		{"a frontend", named("frontend-1"), false, noticed},
		{"the other frontend", named("frontend-2"), false, noticed},
	} {
		m.fault(t, "bus from "+c.what, func(t *testing.T) {
			m.later(time.Second)
			cut(t, []string{c.part(t)}, nats)
			if c.goesOn {
				m.flows(t)
			}
			m.wait(c.lasting)
			heal(t)
		})
	}
	// Processes are cut off only from the server that leads the log.
	for what, part := range map[string]func(*testing.T) string{
		"watcher": named("watcher"), "leader": leader, "standby": standby, "frontend": named("frontend-1"),
	} {
		m.fault(t, "first NATS server from the "+what, func(t *testing.T) {
			m.later(time.Second)
			cut(t, []string{part(t)}, []string{streams(t)})
			m.flows(t)
			m.wait(noticed)
			m.flows(t)
			heal(t)
		})
	}
	m.fault(t, "first NATS server from both others", func(t *testing.T) {
		n := streams(t)
		cut(t, []string{n}, nats)
		m.flows(t)
		m.wait(noticed)
		heal(t)
		m.whole(t)
	})
	m.fault(t, "first NATS server from one other", func(t *testing.T) {
		n := streams(t)
		for _, other := range nats {
			if other != n {
				cut(t, []string{n}, []string{other})
				break
			}
		}
		m.flows(t)
		m.wait(noticed)
		heal(t)
		m.whole(t)
	})
	m.fault(t, "first NATS server from all processes", func(t *testing.T) {
		n := streams(t)
		cut(t, []string{n}, append([]string{"watcher", "twin-1", "builder-1", "builder-2", "frontend-1", "frontend-2", rig.Here}, nats...))
		m.flows(t)
		m.wait(noticed)
		heal(t)
		m.whole(t)
	})
	m.fault(t, "all NATS servers from one another", func(t *testing.T) {
		cut(t, nats, nats)
		m.wait(noticed)
		heal(t)
		m.whole(t)
	})
	m.fault(t, "frontend from its Envoys", func(t *testing.T) {
		connected := m.connected(t)
		cut(t, []string{connected}, []string{rig.Here})
		// Envoy notices by the keepalive of its bootstrap: after 30 s, and 5 s for
		// the answer.
		m.flows(t)
		heal(t)
	})
	m.fault(t, "parts that exchange no data", func(t *testing.T) {
		cut(t, []string{"watcher", "twin-1"}, []string{"builder-1", "builder-2", "frontend-1", "frontend-2"})
		cut(t, []string{"builder-1", "builder-2"}, []string{"frontend-1", "frontend-2", rig.Here})
		cut(t, []string{"builder-1"}, []string{"builder-2"})
		cut(t, []string{"frontend-1"}, []string{"frontend-2"})
		m.flows(t)
		heal(t)
	})
}

// whole waits until all NATS servers are connected again and have caught up.
func (m *mesh) whole(t *testing.T) {
	t.Helper()
	must(t, m.Cluster.Ready(m.ctx))
	for _, stream := range []string{rig.Events, rig.Versions} {
		must(t, m.Cluster.CaughtUp(m.ctx, stream))
	}
}

// connected returns the name of a frontend that an Envoy is connected to.
func (m *mesh) connected(t *testing.T) (name string) {
	t.Helper()
	must(t, program.Until(m.ctx, "a frontend with an Envoy", func(ctx context.Context) error {
		for _, s := range m.Frontends {
			var r rig.FrontendReport
			if err := s.Debug(ctx, "frontend", &r); err != nil {
				return err
			}
			if len(r.Proxies) > 0 {
				name = s.Name
				return nil
			}
		}
		return errors.New("none")
	}))
	return name
}
