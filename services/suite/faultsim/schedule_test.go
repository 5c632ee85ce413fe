package faultsim

import (
	"fmt"
	"slices"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/store"
)

// The length of a schedule in units of time, and the number of steps in a unit.
const (
	faultTime  = 260
	faultSteps = 75 // steps of all processes together
	settleTime = 900
	calmSteps  = 5   // steps of each process
	checkEvery = 50  // interval between checks while the system settles
	restless   = 200 // sessions must be stable after this time
	mostBegins = 7   // more Begins than this are a sign of unrest
)

// run runs one schedule. The error is the violated invariant.
func run(p plan) (s *sim, err error) {
	s = newSim(p)
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
		s.close()
	}()
	s.storm()
	s.calm()
	s.final()
	s.note("end: the dice would say %d", s.rnd.Uint64())
	return s, nil
}

// storm runs the part of the schedule in which faults are injected.
func (s *sim) storm() {
	for range 3 {
		for _, src := range s.sources {
			src.op()
		}
	}
	for s.now = range faultTime {
		if s.has("forge") && s.forger.rnd.IntN(12) == 0 {
			s.forge()
		}
		if s.has("sign") && s.signer.rnd.IntN(12) == 0 {
			s.forgeOperator()
		}
		switch x := s.rnd.Float64(); {
		case x < .05:
			s.sources[s.rnd.IntN(sources)].op()
		case x < .13:
			s.strike()
		case x < .15 && s.has("kinds"):
			s.turnKinds()
		default:
			for range faultSteps {
				s.procs[s.rnd.IntN(len(s.procs))].step()
			}
		}
	}
}

// strike injects one fault if the plan contains it.
func (s *sim) strike() {
	rnd := s.rnd
	switch x := rnd.Float64(); {
	case x < .25:
		if s.has("crash") {
			s.procs[rnd.IntN(len(s.procs))].kill("")
		}
	case x < .33:
		if s.has("files") {
			s.loseFile()
		}
	case x < .42:
		if s.has("twolead") {
			b := s.builders[rnd.IntN(len(s.builders))]
			b.lead = !b.lead
			s.note("%s leads: %t", b.name, b.lead)
		}
	case x < .50:
		if s.has("partial") {
			s.breakSource()
		}
	case x < .56:
		if s.has("window") {
			s.log.ExpireDedupe()
			s.note("the log forgets ids")
		}
	case x < .60:
		if s.has("build") {
			s.builders[rnd.IntN(len(s.builders))].upgrade()
		}
	case x < .63:
		if last := s.last(); s.has("rewind") && last > policyRecords+8 {
			back := []uint64{1, 2, 3, 5, 9, 15}[rnd.IntN(6)]
			s.rewind(max(policyRecords, last-min(last, back)), rnd.Float64() < .35)
		}
	case x < .82:
		if len(s.net) > 0 {
			s.deliver(rnd.IntN(len(s.net)))
		}
	case x < .85:
		if s.has("trim") {
			s.trim()
		}
	case x < .88:
		if s.has("expire") && len(s.versions) > 0 {
			s.chain.Expire()
			s.chain.Reconnect()
			s.expired = len(s.versions)
			s.note("VERSIONS expires")
		}
	case x < .89:
		if len(s.net) > 0 {
			s.net = s.net[1:]
		}
	case x < .92:
		if s.has("delay") {
			s.log.Reconnect()
			s.note("the connections to the log are renewed")
		}
	case x < .94:
		if s.has("full") {
			i := rnd.IntN(len(s.disks()))
			d := s.disks()[i]
			d.full = !d.full
			s.note("disk %d is full: %t", i, d.full)
		}
	case x < .96:
		if s.has("clock") {
			s.stepClock()
		}
	case x < .98:
		if s.has("retain") {
			s.retain()
		}
	case x < .985:
		if s.has("remove") && !s.sources[1].removed {
			s.removeSource()
		}
	}
}

// disks returns the disks of all processes that have one.
func (s *sim) disks() (all []*disk) {
	for _, f := range s.frontends {
		all = append(all, f.disk)
	}
	for _, b := range s.builders {
		all = append(all, b.disk)
	}
	return all
}

// stepClock changes a clock: the log server's or a builder's.
func (s *sim) stepClock() {
	step := []time.Duration{time.Second, 30 * time.Second, 10 * time.Minute}[s.rnd.IntN(3)]
	if s.rnd.IntN(2) == 0 {
		step = -step
	}
	which := s.rnd.IntN(1 + len(s.builders))
	clock, name := &s.skew, "the log server"
	if which > 0 {
		b := s.builders[which-1]
		clock, name = &b.skew, b.name
	}
	if next := *clock + step; next.Abs() < 15*time.Minute { // keeps the year
		*clock = next
		s.note("the clock of %s steps by %s", name, step)
	}
}

// retain lets retention remove the records of the log that are older than the
// newest fold checkpoint on the chain.
func (s *sim) retain() {
	for _, v := range slices.Backward(s.chainVersions()) {
		at := v.manifest.GetFoldCheckpoint().GetVersion().GetSeq()
		if at <= uint64(len(s.gone)) || at > s.last() {
			continue
		}
		s.gone = s.records()[:at]
		s.note("the log begins behind %d", at)
		s.log.Trim(at + 1)
		return
	}
}

// removeSource ends source 1 and its watcher; an operator then removes the source.
func (s *sim) removeSource() {
	src, w := s.sources[1], s.watchers[2]
	w.kill("for good")
	src.down, src.partial = false, false
	src.hide("", false)
	var set []change
	for _, k := range sortedKeys(src.truth) {
		set = append(set, change{key: k})
	}
	src.set(set...)
	src.removed = true
	s.procs = append(without(s.procs, &w.proc), &newRemover(s, src).proc)
}

func (s *sim) loseFile() {
	disks, procs := s.disks(), []*proc{}
	for _, f := range s.frontends {
		procs = append(procs, &f.proc)
	}
	for _, b := range s.builders {
		procs = append(procs, &b.proc)
	}
	i := s.rnd.IntN(len(disks))
	if s.rnd.Float64() < .4 {
		procs[i].kill("and its file lost")
		disks[i].lose()
	} else {
		procs[i].kill("and its file an older one")
		disks[i].restore()
	}
}

// trim lets retention remove the messages of VERSIONS that are older than the
// newest checkpoint there.
func (s *sim) trim() {
	for _, v := range slices.Backward(s.chainVersions()) {
		c := v.manifest.GetCheckpoint()
		if c == nil {
			continue
		}
		for i, old := range s.versions {
			if old.v == store.VersionOf(c.GetVersion()) {
				s.note("VERSIONS begins behind %s", old.v)
				s.chain.Trim(uint64(i) + 1)
				s.expired = max(s.expired, i+1)
			}
		}
		return
	}
}

func (s *sim) breakSource() {
	src := s.sources[s.rnd.IntN(sources)]
	if src.removed {
		return
	}
	if s.rnd.IntN(2) == 0 {
		src.down = !src.down
	} else {
		src.partial = !src.partial
	}
	if src.partial {
		s.batches, s.noBatches = nil, true
	}
	s.note("source %d: down %t, partial %t", src.n, src.down, src.partial)
}

// upgrade replaces the program of a builder by the other build.
func (b *builderProc) upgrade() {
	if b.build == buildA {
		b.build = buildB
	} else {
		b.build = buildA
	}
	b.kill("for build " + b.build)
}

// deliver lets a late request arrive.
func (s *sim) deliver(i int) {
	l := s.net[i]
	s.net = append(s.net[:i:i], s.net[i+1:]...)
	s.note("arrives late: %s: %s", l.what, outcome(l.act()))
}

// calm lets the system settle. No further fault is injected, but a twin may stay
// dead and the source that is not required may stay away.
func (s *sim) calm() {
	rnd := s.rnd
	s.faults = false
	s.note("---- faults stop")
	for len(s.net) > 0 {
		if rnd.IntN(2) == 0 {
			s.deliver(0)
		} else {
			s.net = s.net[1:]
		}
	}
	for _, src := range s.sources {
		src.down, src.partial = false, false
		if s.has("kinds") && !src.removed {
			src.hide([]string{"", "", "", endpoint, config}[rnd.IntN(5)], src.named)
		}
	}
	for _, d := range s.disks() {
		d.full = false
	}
	if s.has("net") && rnd.Float64() < .15 && !s.sources[1].removed {
		s.sources[1].down = true
		s.note("source 1 stays down")
	}
	if s.has("partial") && rnd.Float64() < .1 && !s.sources[1].removed {
		s.sources[1].partial = true
		s.batches = nil
		s.note("source 1 stays partial")
	}
	procs := s.procs
	if dead := rnd.IntN(3); dead < 2 {
		s.watchers[dead].kill("for good")
		procs = without(procs, &s.watchers[dead].proc)
	}
	leader := s.builders[rnd.IntN(len(s.builders))]
	for _, b := range s.builders {
		b.lead = b == leader
	}
	s.settle(procs)
}

func (s *sim) settle(procs []*proc) {
	quiet, begins := 0, 0
	for i := range settleTime {
		s.turn(procs)
		if i == restless {
			begins = s.begins()
		}
		if i > restless && i%checkEvery == 0 {
			if s.unsettled() == nil {
				quiet++
			} else {
				quiet = 0
			}
			if quiet == 3 {
				break
			}
		}
	}
	if err := s.unsettled(); err != nil {
		panic(*err)
	}
	if n := s.begins() - begins; n > mostBegins {
		fail("SIM-2", "%d sessions began although nothing changed or failed", n)
	}
}

// turn advances a unit of time without faults.
func (s *sim) turn(procs []*proc) {
	s.now++
	for range calmSteps {
		for _, p := range procs {
			p.step()
		}
	}
}

func (s *sim) begins() int {
	n := 0
	for _, r := range s.records() {
		if _, ok := r.Event.Body.(*events.Begin); ok {
			n++
		}
	}
	return n
}
