package faults

import (
	"testing"
	"time"

	"meshlog.dev/deploy/e2e/rig"
)

// Each process is killed at a random moment, and comes back.
func TestKilled(t *testing.T) {
	m := start(t, onOne("", 2, 1))
	m.killEach(t)
	m.fault(t, "NATS", func(t *testing.T) {
		m.later(time.Second)
		m.NATS.Kill()
		must(t, m.NATS.Restart(m.ctx))
	})
	m.fault(t, "NATS, and its data is deleted", func(t *testing.T) {
		m.NATS.Kill()
		must(t, m.NATS.Wipe())
		m.log.Forget()
		m.chain.Forget()
		must(t, m.NATS.Restart(m.ctx))
	})
}

// killEach kills each of our processes, and restarts it.
func (m *mesh) killEach(t *testing.T) {
	t.Helper()
	m.fault(t, "watcher", func(t *testing.T) { m.killed(t, m.Watcher) })
	m.fault(t, "twin of the watcher", func(t *testing.T) { m.killed(t, m.Twins[0]) })
	m.fault(t, "frontend 1", func(t *testing.T) { m.killed(t, m.Frontends[0]) })
	m.fault(t, "frontend 2", func(t *testing.T) { m.killed(t, m.Frontends[1]) })
	m.fault(t, "standby", func(t *testing.T) {
		_, standby := m.leader(t)
		m.killed(t, standby)
	})
	m.fault(t, "leader, the standby takes over", func(t *testing.T) {
		leader, _ := m.leader(t)
		m.later(time.Second)
		leader.Kill()
		m.flows(t)
		must(t, leader.Restart())
		must(t, leader.Ready(m.ctx))
		m.leader(t)
	})
}

// killed kills a server, and restarts it.
func (m *mesh) killed(t *testing.T, s *rig.Server) {
	t.Helper()
	m.later(time.Second)
	s.Kill()
	must(t, s.Restart())
	must(t, s.Ready(m.ctx))
}
