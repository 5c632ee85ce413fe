//go:build faults

package faults

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"meshlog.dev/deploy/e2e/rig"
)

// A leader is stopped right before it publishes, and resumes when the other
// builder leads. Its version comes too late, and it stands by.
func TestLeaderComesBackLate(t *testing.T) {
	m := start(t, onOne(withStops, 2, 0))
	for _, point := range []string{"builder.publish", "builder.published"} {
		m.fault(t, point, func(t *testing.T) {
			leader, standby := m.leader(t)
			must(t, standby.Stop())
			must(t, standby.RestartWith(failAt+"="+point+":3:pause"))
			must(t, standby.Ready(m.ctx))
			must(t, leader.Stop())
			m.paused(t, standby, point)
			must(t, leader.Restart())
			m.flows(t)
			must(t, standby.Resume())
			if now, _ := m.leader(t); now != leader {
				t.Errorf("%s leads", now.Name)
			}
		})
	}
}

// paused waits until a server is stopped at a point.
func (m *mesh) paused(t *testing.T, s *rig.Server, point string) {
	t.Helper()
	must(t, s.UntilAlive(m.ctx, s.Name+" to be stopped at "+point, func(context.Context) error {
		if still, err := s.Paused(); err != nil || !still {
			return cmp.Or(err, errors.New("it runs"))
		}
		// Its other goroutines may have logged more since.
		if !slices.Contains(strings.Split(s.Tail(20), "\n"), failAt+" "+point) {
			return errors.New("it is stopped somewhere else")
		}
		return nil
	}))
}
