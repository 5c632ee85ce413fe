//go:build faults

package faults

import (
	"context"
	"fmt"
	"testing"
)

// The active watcher of a source is silent for longer than its twin waits. The twin
// becomes active, and stays active when the first watcher is back, at whatever step
// the first watcher was stopped.
func TestTwin(t *testing.T) {
	m := start(t, onOne(withStops, 2, 1))
	m.fault(t, "killed", func(t *testing.T) {
		m.Watcher.Kill()
		m.flows(t)
		must(t, m.Watcher.Restart())
		must(t, m.Watcher.Ready(m.ctx))
		m.speaker(t, 1)
	})
	m.fault(t, "the first watcher is active again", func(t *testing.T) {
		m.Twins[0].Kill()
		m.flows(t)
		must(t, m.Twins[0].Restart())
		must(t, m.Twins[0].Ready(m.ctx))
		m.speaker(t, 0)
	})
	for _, point := range []string{"watcher.begun", "watcher.batch", "watcher.send"} {
		m.fault(t, "paused at "+point, func(t *testing.T) {
			must(t, m.Watcher.Stop())
			m.saves(t)
			must(t, m.Watcher.RestartWith(failAt+"="+point+":pause"))
			m.paused(t, m.Watcher, point)
			m.flows(t)
			must(t, m.Watcher.Resume())
			must(t, m.Watcher.Ready(m.ctx))
			m.flows(t)
			m.speaker(t, 1)
			// Prepare the next round.
			m.Twins[0].Kill()
			m.flows(t)
			must(t, m.Twins[0].Restart())
			must(t, m.Twins[0].Ready(m.ctx))
		})
	}
}

// speaker waits until the watcher (0) or its twin (1) is active, and the other one
// stands by.
func (m *mesh) speaker(t *testing.T, want int) {
	t.Helper()
	for i, s := range append(m.Twins[:0:0], m.Watcher, m.Twins[0]) {
		must(t, s.UntilAlive(m.ctx, s.Name+" to know whether it is active", func(ctx context.Context) error {
			var r struct{ State string }
			if err := s.Debug(ctx, "watcher-file-default", &r); err != nil {
				return err
			}
			if speaks := r.State != "standby"; speaks != (i == want) {
				return fmt.Errorf("it is %s", r.State)
			}
			return nil
		}))
	}
}
