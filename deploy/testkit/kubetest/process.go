package kubetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

const (
	// grace is how long a process may take to end after SIGTERM.
	grace = 30 * time.Second
	// patience is how long anything that is waited for may take.
	patience = 2 * time.Minute
)

// Process is etcd or the API server. It keeps its port and its data from one
// start to the next. Its methods are for one goroutine at a time.
type Process struct {
	// LogPath has everything it prints, over all its starts.
	LogPath string

	name  string
	argv  []string
	ready func(ctx context.Context) error // nil once it does its work

	cmd  *exec.Cmd     // nil: it has never been started
	done chan struct{} // closed once it has ended
	err  error         // how; read after done
}

// Start starts the process, which must not run, and waits until it is ready.
// One that does not get ready is ended.
func (p *Process) Start(ctx context.Context) error {
	if p.Running() {
		return fmt.Errorf("start %s: it runs already", p.name)
	}
	log, err := os.OpenFile(p.LogPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own
	cmd, done := exec.Command(p.argv[0], p.argv[1:]...), make(chan struct{})
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = sysProcAttr()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	p.cmd, p.done = cmd, done
	// Ends with the process, which its owner ends.
	go func() {
		p.err = cmd.Wait()
		close(done)
	}()
	if err := p.untilReady(ctx); err != nil {
		p.Kill()
		return err
	}
	return nil
}

func (p *Process) untilReady(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	return until(ctx, p.name+" to be ready", func(ctx context.Context) error {
		if !p.Running() {
			err := fmt.Errorf("%s has ended (%s); it said last:\n%s", p.name, p.cmd.ProcessState, p.Tail(10))
			cancel(err)
			return err
		}
		return p.ready(ctx)
	})
}

// Running says whether the process has been started and has not ended; one
// that is paused runs.
func (p *Process) Running() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Stop asks the process to end and waits until it has; one that takes longer
// than half a minute is killed, which is an error. One that does not run is
// stopped.
func (p *Process) Stop() error {
	if !p.Running() {
		return nil
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // fails only if it has ended
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
		p.Kill()
		return fmt.Errorf("%s did not end within %s of SIGTERM and was killed; it said last:\n%s", p.name, grace, p.Tail(10))
	}
}

// Kill ends the process at once, as a crash would, and waits until it is gone.
func (p *Process) Kill() {
	if p.Running() {
		_ = p.cmd.Process.Kill() // fails only if it has ended
		<-p.done
	}
}

// Restart kills the process if it runs, starts it, and waits until it is ready.
func (p *Process) Restart(ctx context.Context) error {
	p.Kill()
	return p.Start(ctx)
}

// Pause stops the process as it is: its connections stay open and nothing
// answers. Resume lets it go on, Kill ends it; Stop would wait in vain.
func (p *Process) Pause() error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return stopped(p.PID())
}

// Resume ends a Pause.
func (p *Process) Resume() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// PID is the process id of the last start.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Tail is the last lines that the process printed.
func (p *Process) Tail(lines int) string {
	b, err := os.ReadFile(p.LogPath)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(string(bytes.TrimRight(b, "\n")), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// until asks check every few milliseconds until it returns nil. Where ctx or the
// patience ends first, the error names what was waited for and what check said
// last.
func until(ctx context.Context, what string, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	last := errors.New("not asked yet")
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		// A check that ctx cut short knows less than the one before.
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w: %w", what, context.Cause(ctx), last)
		case <-tick.C:
		}
	}
}
