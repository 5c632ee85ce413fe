package faultsim

import (
	"fmt"
	"testing"
)

// A script is an event in a system at rest. It runs without faults, so every run
// is the same up to the step at which a process is killed.
var scripts = []struct {
	name string
	cold bool // the system has just started
	do   func(*sim)
}{
	{"start", true, func(*sim) {}},
	{"change", false, func(s *sim) {
		s.sources[0].set(change{keyOf(0, config, 0), s.newValue(goodValue)}, change{keyOf(0, config, 1), s.newValue(goodValue)})
		s.sources[0].set(change{keyOf(0, endpoint, 0), s.newValue(goodValue)})
	}},
	{"mass loss", false, func(s *sim) {
		s.sources[0].set(change{key: keyOf(0, config, 0)}, change{key: keyOf(0, config, 1)}, change{key: keyOf(0, config, 2)})
	}},
	{"rewind", false, func(s *sim) {
		s.sources[0].set(change{keyOf(0, config, 0), s.newValue(goodValue)})
		s.rewind(s.last()-2, false)
	}},
	{"rejected", false, func(s *sim) {
		s.sources[0].set(change{keyOf(0, config, 0), s.newValue(badValue)})
	}},
	{"repaired", false, func(s *sim) {
		s.sources[0].set(change{keyOf(0, config, 0), s.newValue(badValue)})
		s.rest(s.procs)
		s.sources[0].set(change{keyOf(0, config, 0), s.newValue(goodValue)})
	}},
	{"kinds", false, func(s *sim) {
		src := s.sources[0]
		src.hide(config, false)
		src.set(change{key: keyOf(0, config, 0)}, change{keyOf(0, config, 1), s.newValue(goodValue)})
		src.set(change{keyOf(0, endpoint, 0), s.newValue(goodValue)})
		s.rest(s.procs)
		src.hide("", true)
	}},
	{"new build", false, func(s *sim) {
		for _, b := range s.builders {
			b.upgrade()
		}
	}},
}

// victims are the processes that the test kills. after runs after the kill and
// returns the process if it must not start again, else nil.
var victims = []struct {
	name  string
	proc  func(*sim) *proc
	after func(*sim) (dead *proc)
}{
	{"leader", func(s *sim) *proc { return &s.builders[0].proc }, func(*sim) *proc { return nil }},
	{"leader for good", func(s *sim) *proc { return &s.builders[0].proc }, func(s *sim) *proc {
		s.builders[0].lead, s.builders[1].lead = false, true
		return &s.builders[0].proc
	}},
	{"standby", func(s *sim) *proc { return &s.builders[1].proc }, func(*sim) *proc { return nil }},
	{"watcher", func(s *sim) *proc { return s.speaker() }, func(*sim) *proc { return nil }},
	{"watcher for good", func(s *sim) *proc { return s.speaker() }, func(s *sim) *proc { return s.speaker() }},
	{"frontend", func(s *sim) *proc { return &s.frontends[0].proc }, func(*sim) *proc { return nil }},
	{"frontend's disk", func(s *sim) *proc { return &s.frontends[0].persister }, func(*sim) *proc { return nil }},
}

// speaker is the watcher that publishes for source 0 without faults.
func (s *sim) speaker() *proc { return &s.watchers[0].proc }

// TestKillAtEveryStep kills one process at every step of IO of every script,
// before and after the step's effect. All invariants hold at the end.
func TestKillAtEveryStep(t *testing.T) {
	for i, script := range scripts {
		for j, victim := range victims {
			t.Run(script.name+"/"+victim.name, func(t *testing.T) {
				t.Parallel()
				steps := 0
				for at := 1; at != 0; at++ {
					killed, err := kill(i, j, at)
					if err != nil {
						t.Errorf("killed at step %d: %v", at, err)
					}
					if !killed {
						break
					}
					steps++
				}
				if steps < 2 {
					t.Errorf("the process took only %d steps at which it can be killed", steps)
				}
				t.Logf("%d steps", steps)
			})
		}
	}
}

// kill runs a script and kills a process at one of its steps. killed is false if
// the script ended before that step.
func kill(script, victim, at int) (killed bool, err error) {
	s := newSim(plan{})
	s.faults = false
	defer s.close()
	defer func() {
		switch r := recover().(type) {
		case nil:
		case violation:
			err = r
		case crash:
			err = fmt.Errorf("panic: %v\n%s", r.reason, r.stack)
		default:
			panic(r)
		}
	}()
	for n, src := range s.sources {
		for k := range perKind {
			src.set(change{keyOf(n, config, k), s.newValue(goodValue)})
		}
		src.set(change{keyOf(n, endpoint, 0), s.newValue(goodValue)})
	}
	sc, v := scripts[script], victims[victim]
	if !sc.cold {
		s.rest(s.procs)
	}
	sc.do(s)
	p := v.proc(s)
	p.paused, p.killAt = 0, at
	procs := s.procs
	for settled := 0; settled < 8; { // steps that follow a version count too
		s.turn(procs)
		if !killed && p.paused >= at {
			killed = true
			if dead := v.after(s); dead != nil {
				dead.exit()
				procs = without(procs, dead)
			}
		}
		switch err := s.unsettled(); {
		case err == nil:
			settled++
		case s.now > mostTime:
			panic(*err)
		default:
			settled = 0
		}
	}
	s.final()
	return killed, nil
}

// mostTime is the longest time that a script may take, in units of time. A twin
// takes over from a dead watcher after 75.
const mostTime = 400

// rest advances time until the system is settled.
func (s *sim) rest(procs []*proc) {
	for {
		s.turn(procs)
		err := s.unsettled()
		if err == nil {
			return
		}
		if s.now > mostTime {
			panic(*err)
		}
	}
}

func without(procs []*proc, dead *proc) []*proc {
	var rest []*proc
	for _, p := range procs {
		if p != dead {
			rest = append(rest, p)
		}
	}
	return rest
}
