package faultsim

import (
	"errors"
	"fmt"
	"iter"
	"runtime/debug"
)

// proc is a process of the system as a coroutine: real sequential code that yields
// to the scheduler at every step of IO. There the scheduler can pause it for any
// time, or kill it.
type proc struct {
	s    *sim
	name string
	// body runs the process from its start. It returns when the process is killed
	// or restarts.
	body func()
	// twin is another goroutine of the same process, or nil. The two die together.
	twin *proc

	next  func() (struct{}, bool) // nil: not running
	stop  func()
	yield func(struct{}) bool
	dying bool
	// paused counts how often the process has yielded. At the killAt-th time the
	// process is killed.
	paused, killAt int
}

// killed is the panic value that unwinds the stack of a killed process.
type killed struct{}

// crash is a panic of the code under test.
type crash struct {
	reason any
	stack  []byte
}

// step runs the process until it yields.
func (p *proc) step() {
	if p.next == nil {
		p.next, p.stop = iter.Pull(p.run)
	}
	if _, alive := p.next(); !alive {
		p.next = nil
		return
	}
	if p.paused == p.killAt {
		p.kill("at this step")
	}
}

func (p *proc) run(yield func(struct{}) bool) {
	defer func() {
		switch r := recover().(type) {
		case nil, killed:
		case violation:
			panic(r)
		default:
			panic(crash{r, debug.Stack()})
		}
	}()
	p.yield, p.dying = yield, false
	p.body()
}

// pause yields. It does not return if the process is killed meanwhile.
func (p *proc) pause() {
	p.paused++
	if !p.yield(struct{}{}) {
		p.dying = true
		panic(killed{})
	}
}

// kill ends the process as SIGKILL does: no further step happens.
func (p *proc) kill(why string) {
	p.s.note("%s killed %s", p.name, why)
	p.exit()
	if p.twin != nil {
		p.twin.exit()
	}
}

func (p *proc) exit() {
	if p.next != nil {
		p.stop()
		p.next = nil
	}
}

var (
	errKilled  = errors.New("sim: this process is dead")
	errUnknown = errors.New("sim: no answer came in time")
	errDisk    = errors.New("sim: the disk fails")
)

// call makes a request that changes state. The request may arrive, arrive late or
// be lost, and its answer may be lost.
func call[T any](p *proc, what string, act func() (T, error)) (T, error) {
	var none T
	if p.dying {
		return none, errKilled
	}
	s := p.s
	p.pause()
	x := 1.0
	if s.faults {
		x = s.rnd.Float64()
	}
	switch {
	case x < .06:
		s.note("%s %s: lost", p.name, what)
		return none, fmt.Errorf("%s: %w", what, errUnknown)
	case x < .14 && s.has("delay"):
		s.note("%s %s: late", p.name, what)
		s.net = append(s.net, late{p.name + " " + what, func() error { _, err := act(); return err }})
		return none, fmt.Errorf("%s: %w", what, errUnknown)
	}
	answer, err := act()
	if x < .20 {
		s.note("%s %s: answer lost (%s)", p.name, what, outcome(err))
		return none, fmt.Errorf("%s: %w", what, errUnknown)
	}
	s.note("%s %s: %s", p.name, what, outcome(err))
	p.pause()
	return answer, err
}

// ask makes a request that changes nothing. Sometimes no answer comes.
func ask[T any](p *proc, what string, act func() (T, error)) (T, error) {
	var none T
	if p.dying {
		return none, errKilled
	}
	p.pause()
	if p.s.faults && p.s.rnd.Float64() < .02 {
		p.s.note("%s %s: no answer", p.name, what)
		return none, fmt.Errorf("%s: %w", what, errUnknown)
	}
	return act()
}

// do runs a step on the process's own disk. A failed step may have taken effect.
func do(p *proc, what string, act func() error) error {
	if p.dying {
		return errKilled
	}
	p.pause()
	x := 1.0
	if p.s.faults && p.s.has("disk") {
		x = p.s.rnd.Float64()
	}
	if x < .02 {
		p.s.note("%s %s: not done", p.name, what)
		return fmt.Errorf("%s: %w", what, errDisk)
	}
	err := act()
	p.s.note("%s %s: %s", p.name, what, outcome(err))
	p.pause()
	if x < .04 && err == nil {
		p.s.note("%s %s: done, but it looks failed", p.name, what)
		return fmt.Errorf("%s: %w", what, errDisk)
	}
	return err
}

func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	return err.Error()
}

// late is a request in flight whose caller has given up.
type late struct {
	what string
	act  func() error
}
