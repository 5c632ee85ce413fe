//go:build faults

package faults

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// soaks is how many rounds of random kills there are.
const soaks = 30

// One to three processes, NATS included, are killed at random moments, and come
// back at random moments, round after round.
func TestKilledAtRandom(t *testing.T) {
	m := start(t, onOne("", 2, 1))
	for round := range soaks {
		var restarts []func() error
		var names []string
		n := 1 + m.dice.IntN(3)
		for _, i := range m.dice.Perm(1 + len(m.Servers()))[:n] {
			if i == len(m.Servers()) {
				names, restarts = append(names, m.NATS.Name), append(restarts, func() error { m.NATS.Kill(); return m.NATS.Restart(m.ctx) })
				continue
			}
			s := m.Servers()[i]
			names, restarts = append(names, s.Name), append(restarts, func() error { s.Kill(); return s.Restart() })
		}
		m.fault(t, fmt.Sprintf("%d %s", round, strings.Join(names, " and ")), func(t *testing.T) {
			var all sync.WaitGroup
			for _, restart := range restarts {
				moment := time.Duration(m.dice.Int64N(int64(time.Second)))
				all.Go(func() {
					timer := time.NewTimer(moment)
					defer timer.Stop()
					<-timer.C
					if err := restart(); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			for _, s := range m.Servers() {
				must(t, s.Ready(m.ctx))
			}
		})
	}
}

// Leader and standby are killed at each step, and the other builder takes over.
func TestStandbyGoesOnAtEachStep(t *testing.T) { goesOn(t, onOne(withStops, 2, 0)) }

// The same, and the steps of watchers and frontends, on three NATS servers.
func TestKilledAtEachStepOnThreeNATS(t *testing.T) {
	m := start(t, onThree(withStops, nil, 1, 0))
	for _, point := range points(t) {
		m.fault(t, point, func(t *testing.T) { m.killedAt(t, point, ways[point]) })
	}
}

// goesOn lets the standby take over, and kills it at a step while it leads. At steps
// that a standby reaches too, it is killed before it leads.
func goesOn(t *testing.T, arranged arrangement) {
	m := start(t, arranged)
	for _, point := range points(t) {
		if w := ways[point]; !strings.HasPrefix(point, "builder.") || w.before != nil {
			continue
		}
		m.fault(t, point, func(t *testing.T) {
			leader, standby := m.leader(t)
			must(t, standby.Stop())
			must(t, standby.RestartWith(failAt+"="+point))
			must(t, leader.Stop())
			stopped(m.ctx, t, standby, point)
			must(t, leader.Restart())
			m.flows(t)
			must(t, standby.Restart())
			must(t, standby.Ready(m.ctx))
		})
	}
}
