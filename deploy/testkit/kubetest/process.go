package kubetest

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"meshlog.dev/deploy/testkit/program"
)

const (
	// grace is the time that Stop gives a process to end after SIGTERM.
	grace = 30 * time.Second
	// timeout limits every wait of this package.
	timeout = 2 * time.Minute
)

// Process is etcd or the API server. It keeps its port and its data when it is
// restarted. Its methods must not be called concurrently.
type Process struct {
	*program.Process // the process of the last start

	name, dir string
	argv      []string
	ready     func(ctx context.Context) error // returns nil when the process is ready
}

// Start starts the process, which must not be running, and waits until it is
// ready. It kills a process that does not get ready.
func (p *Process) Start(ctx context.Context) error {
	if p.Running() {
		return fmt.Errorf("start %s: it is already running", p.name)
	}
	var err error
	if p.Process, err = program.Start(p.name, p.dir, p.argv); err != nil {
		return err
	}
	p.Grace = grace
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := p.UntilAlive(ctx, p.name+" to be ready", p.ready); err != nil {
		p.Kill()
		return err
	}
	return nil
}

// Running reports whether the process was started and has not ended. A paused
// process is running.
func (p *Process) Running() bool { return p.Process != nil && p.Process.Running() == nil }

// Stop sends SIGTERM and waits until the process has ended, whatever its exit code.
// After half a minute it kills the process and returns an error. Stop does nothing
// if the process is not running.
func (p *Process) Stop() error {
	if !p.Running() {
		return nil
	}
	err := p.Process.Stop()
	if errors.As(err, new(*exec.ExitError)) {
		return nil
	}
	return err
}

// Kill kills the process, as a crash would, and waits until it has ended.
func (p *Process) Kill() {
	if p.Running() {
		p.Process.Kill()
	}
}

// Restart kills the process if it is running, starts it, and waits until it is
// ready.
func (p *Process) Restart(ctx context.Context) error {
	p.Kill()
	return p.Start(ctx)
}

// until is program.Until with the timeout of this package.
func until(ctx context.Context, what string, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return program.Until(ctx, what, check)
}
