// Package program runs programs for tests, the demo and the benchmarks, and finds
// the tools and files of the tree that they need.
package program

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// DefaultGrace is the time that Stop gives a process to end after SIGTERM.
const DefaultGrace = 10 * time.Second

// Process is a running program. Its methods may be called from any goroutine.
type Process struct {
	Name string
	// LogPath is the file with all its output. A later process of the same name
	// and directory appends to it.
	LogPath string
	// Grace is the time that Stop gives the process; Start sets DefaultGrace.
	Grace time.Duration

	dir  string
	argv []string
	env  []string
	attr *syscall.SysProcAttr

	before int64 // bytes in the file of earlier processes

	cmd  *exec.Cmd
	done chan struct{} // closed once it has ended
	err  error         // how it ended; read after done
}

// Start runs argv with its output in dir/name.log. The process is in a process
// group of its own, so that Ctrl-C reaches only this program. It dies with this
// program.
func Start(name, dir string, argv []string, env ...string) (*Process, error) {
	return start(name, dir, argv, env, sysProcAttr())
}

func start(name, dir string, argv, env []string, attr *syscall.SysProcAttr) (*Process, error) {
	p := &Process{
		Name: name, LogPath: filepath.Join(dir, name+".log"),
		Grace: DefaultGrace, dir: dir, argv: argv, env: env, attr: attr, done: make(chan struct{}),
	}
	log, err := os.OpenFile(p.LogPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own
	if p.before, err = log.Seek(0, io.SeekEnd); err != nil {
		return nil, err
	}
	p.cmd = exec.Command(argv[0], argv[1:]...)
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = attr
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	// Ends with the process, which its owner ends.
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Again runs the same program with the same arguments once more. The process
// itself must have ended.
func (p *Process) Again() (*Process, error) { return start(p.Name, p.dir, p.argv, p.env, p.attr) }

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed once the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Running returns nil, or an error with the way the process ended and its last
// output.
func (p *Process) Running() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s has ended (%s); its last output:\n%s", p.Name, p.cmd.ProcessState, p.Tail(10))
	default:
		return nil
	}
}

// Stop asks the process to end and waits until it has. It is an error if the
// process ends with a code other than 0, or does not end within its grace; then
// Stop kills it. A process that has ended already counts as stopped.
func (p *Process) Stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // fails only if it has ended
	timer := time.NewTimer(p.Grace)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		p.Kill()
		return fmt.Errorf("%s did not end within %s of SIGTERM and was killed; its last output:\n%s", p.Name, p.Grace, p.Tail(10))
	}
	if p.err != nil {
		return fmt.Errorf("%s ended with an error: %w; its last output:\n%s", p.Name, p.err, p.Tail(10))
	}
	return nil
}

// Kill ends the process at once, as a crash would, and waits until it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // fails only if it has ended
	<-p.done
}

// Pause freezes the process, as a swapping machine does: its connections stay open
// and get no answers. After Pause use Resume or Kill, not Stop, whose signal would
// stay pending.
func (p *Process) Pause() error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return stopped(p.PID())
}

// Paused reports whether the process is stopped, by Pause or by itself.
func (p *Process) Paused() (bool, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		return false, err
	}
	_, state, _ := bytes.Cut(b, []byte(") ")) // the state follows the name
	return bytes.HasPrefix(state, []byte("T")), nil
}

// Resume ends a Pause.
func (p *Process) Resume() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// Tail returns the last lines that the process printed, none of an earlier process of the name.
func (p *Process) Tail(lines int) string {
	b, err := os.ReadFile(p.LogPath)
	if err != nil {
		return err.Error()
	}
	b = b[min(p.before, int64(len(b))):]
	all := strings.Split(string(bytes.TrimRight(b, "\n")), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// UntilAlive is Until for a condition that p brings about: it gives up when p
// ends.
func (p *Process) UntilAlive(ctx context.Context, what string, check func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	return Until(ctx, what, func(ctx context.Context) error {
		if err := p.Running(); err != nil {
			cancel(err)
			return err
		}
		return check(ctx)
	})
}

// Until calls check every few milliseconds until it returns nil. If ctx ends
// first, the error names what Until waited for and the last error of check.
func Until(ctx context.Context, what string, check func(context.Context) error) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	last := errors.New("not checked yet")
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		// A check that ctx cut short reports less than the check before it.
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
