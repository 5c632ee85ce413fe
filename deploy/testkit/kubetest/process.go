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
	// grace is the time that Stop gives a process to exit after SIGTERM.
	grace = 30 * time.Second
	// timeout limits every wait of this package.
	timeout = 2 * time.Minute
)

// Process is etcd or the API server. It keeps its port and its data when it is
// restarted. Its methods must not be called concurrently.
type Process struct {
	// LogPath is a file with the output of all starts.
	LogPath string

	name  string
	argv  []string
	ready func(ctx context.Context) error // returns nil when the process is ready

	cmd  *exec.Cmd     // nil before the first start
	done chan struct{} // closed when the process has exited
}

// Start starts the process, which must not be running, and waits until it is
// ready. It kills a process that does not get ready.
func (p *Process) Start(ctx context.Context) error {
	if p.Running() {
		return fmt.Errorf("start %s: it is already running", p.name)
	}
	log, err := os.OpenFile(p.LogPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own descriptor
	cmd, done := exec.Command(p.argv[0], p.argv[1:]...), make(chan struct{})
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = sysProcAttr()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	p.cmd, p.done = cmd, done
	go func() {
		_ = cmd.Wait() // the caller sees how it ended in cmd.ProcessState
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
			err := fmt.Errorf("%s exited (%s); its last output:\n%s", p.name, p.cmd.ProcessState, p.Tail(10))
			cancel(err)
			return err
		}
		return p.ready(ctx)
	})
}

// Running reports whether the process was started and has not exited. A paused
// process is running.
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

// Stop sends SIGTERM and waits until the process has exited. After half a minute
// it kills the process and returns an error. Stop does nothing if the process is
// not running.
func (p *Process) Stop() error {
	if !p.Running() {
		return nil
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // fails only if the process has exited
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
		p.Kill()
		return fmt.Errorf("%s did not exit within %s of SIGTERM and was killed; its last output:\n%s", p.name, grace, p.Tail(10))
	}
}

// Kill kills the process, as a crash would, and waits until it has exited.
func (p *Process) Kill() {
	if p.Running() {
		_ = p.cmd.Process.Kill() // fails only if the process has exited
		<-p.done
	}
}

// Restart kills the process if it is running, starts it, and waits until it is
// ready.
func (p *Process) Restart(ctx context.Context) error {
	p.Kill()
	return p.Start(ctx)
}

// Pause freezes the process: its connections stay open and get no answers. After
// Pause use Resume or Kill, not Stop, whose signal would stay pending.
func (p *Process) Pause() error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return stopped(p.PID())
}

// Resume ends a Pause.
func (p *Process) Resume() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// PID returns the process ID of the last start.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Tail returns the last lines of the output.
func (p *Process) Tail(lines int) string {
	b, err := os.ReadFile(p.LogPath)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(string(bytes.TrimRight(b, "\n")), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// until calls check every 20 ms until it returns nil. If ctx or the timeout ends
// first, the error says what until waited for and includes check's last error.
func until(ctx context.Context, what string, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	last := errors.New("not checked yet")
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		// The error of a check that ctx interrupted says less than the one before.
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
