package faults

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/program"
)

// The programs in bin/faults, which a test can kill at a step.
const (
	withStops = "faults"
	failAt    = "MESHLOG_FAIL_AT"
)

// reached bounds how long a process takes to reach a step.
const reached = 20 * time.Second

// way makes a process reach a step that it does not reach by itself under load.
type way struct {
	pass   string // the pass at which it is killed, if that is not the first
	before func(*mesh, *testing.T, *rig.Server)
	reach  func(*mesh, *testing.T)
	after  func(*mesh, *testing.T)
	// It leaves much on the log, which every judgement after it folds again.
	bulk bool
}

// ways are the ways to rare steps, by point.
var ways = map[string]way{
	// A builder of another build was there before.
	"builder.base":    {before: (*mesh).anotherBuild},
	"builder.segment": {before: (*mesh).anotherBuild},
	// A source loses much at once.
	"builder.hold": {bulk: true, before: (*mesh).withBulk, reach: (*mesh).loseBulk, after: (*mesh).approve},
	"builder.held": {bulk: true, before: (*mesh).withBulk, reach: (*mesh).loseBulk, after: (*mesh).approve},
	// In the middle of more records than fit in one batch of the bus.
	"watcher.batch": {bulk: true, pass: ":2", reach: (*mesh).saveBulk, after: func(m *mesh, t *testing.T) {
		m.hasBulk(t)
		m.loseBulk(t)
		m.approve(t)
	}},
	// In the middle of the responses to a proxy that comes from another frontend.
	"frontend.push": {pass: ":3", reach: (*mesh).leaveSecond},
}

// Each process is killed at each of its steps, alone, and comes back.
func TestKilledAtEachStep(t *testing.T) {
	m := start(t, onOne(withStops, 1, 0))
	for _, point := range points(t) {
		m.fault(t, point, func(t *testing.T) { m.killedAt(t, point, ways[point]) })
	}
}

// killedAt kills the process at that point, and restarts it.
func (m *mesh) killedAt(t *testing.T, point string, w way) {
	t.Helper()
	s := m.owner(t, point)
	if w.before != nil {
		w.before(m, t, s)
	}
	must(t, s.Stop())
	m.saves(t)
	must(t, s.RestartWith(failAt+"="+point+w.pass))
	if w.reach != nil {
		must(t, s.Ready(m.ctx))
		w.reach(m, t)
	}
	stopped(m.ctx, t, s, point)
	must(t, s.Restart())
	must(t, s.Ready(m.ctx))
	if w.after != nil {
		w.after(m, t)
	}
}

// stopped waits until a server has been killed at a point.
func stopped(ctx context.Context, t *testing.T, s *rig.Server, point string) {
	t.Helper()
	late, cancel := context.WithTimeout(ctx, reached)
	defer cancel()
	select {
	case <-s.Done():
	case <-late.Done():
		t.Fatalf("%s has not reached %s within %s", s.Name, point, reached)
	}
	if said := s.Tail(1); said != failAt+" "+point {
		t.Fatalf("%s ended, not at %s; its last output:\n%s", s.Name, point, s.Tail(10))
	}
}

// owner returns the process that passes a point.
func (m *mesh) owner(t *testing.T, point string) *rig.Server {
	t.Helper()
	process, _, _ := strings.Cut(point, ".")
	switch process {
	case "builder":
		return m.Builders[0]
	case "watcher":
		return m.Watcher
	case "frontend":
		return m.Frontends[0]
	}
	t.Fatalf("no process passes the point %s", point)
	return nil
}

// saves waits until more files were saved, so that a process that is down has
// missed a change.
func (m *mesh) saves(t *testing.T) {
	t.Helper()
	was := m.writer.revisions()
	must(t, program.Until(m.ctx, "a change", func(context.Context) error {
		if m.writer.revisions() == was {
			return fmt.Errorf("revisions %v", was)
		}
		return nil
	}))
}

// anotherBuild lets a builder of another build lead and publish.
func (m *mesh) anotherBuild(t *testing.T, s *rig.Server) {
	t.Helper()
	must(t, s.Stop())
	must(t, s.RestartAs("builder"))
	must(t, s.Ready(m.ctx))
	m.flows(t)
}

// withBulk waits until the many services are served.
func (m *mesh) withBulk(t *testing.T, _ *rig.Server) {
	t.Helper()
	m.saveBulk(t)
	m.hasBulk(t)
}

// leaveSecond makes all proxies leave the second frontend.
func (m *mesh) leaveSecond(t *testing.T) {
	t.Helper()
	must(t, m.Frontends[1].Stop())
	must(t, m.Frontends[1].Restart())
}

// points returns the steps at which a process can be killed under the load of a mesh,
// those last whose way leaves much on the log.
func points(t *testing.T) []string {
	t.Helper()
	all := slices.DeleteFunc(allPoints(t), ofKey)
	slices.SortStableFunc(all, func(a, b string) int {
		switch {
		case ways[a].bulk == ways[b].bulk:
			return 0
		case ways[b].bulk:
			return -1
		}
		return 1
	})
	return all
}

// ofKey reports whether a process passes a step only when a private key is new.
func ofKey(point string) bool {
	return strings.Contains(point, ".key-") || strings.HasPrefix(point, "file.")
}

// allPoints returns all steps at which a process can be killed.
func allPoints(t *testing.T) []string {
	t.Helper()
	bin, err := rig.Bin(withStops + "/points")
	must(t, err)
	out, err := exec.CommandContext(t.Context(), bin).Output()
	must(t, err)
	all := strings.Fields(string(out))
	if len(all) == 0 {
		t.Fatal("no points")
	}
	return all
}
