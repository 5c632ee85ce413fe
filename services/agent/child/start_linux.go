package child

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// children are the processes that Start started: the reaper leaves them to Wait.
var children = struct {
	sync.Mutex
	all map[int]<-chan struct{} // closed when Wait has returned
}{all: map[int]<-chan struct{}{}}

type process struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// Start is a Starter. The process has a process group of its own, so that Ctrl-C reaches
// the agent only, which drains; it dies with the agent.
func Start(c Command) (Process, error) {
	cmd := exec.Command(c.Path, c.Args...)
	cmd.Stdout, cmd.Stderr = c.Output, c.Output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if c.UID >= 0 && c.UID != os.Geteuid() {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(c.UID), Gid: uint32(max(c.GID, 0))}
	}
	children.Lock()
	defer children.Unlock()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd, make(chan struct{})}
	children.all[cmd.Process.Pid] = p.done
	return p, nil
}

func (p *process) PID() int                 { return p.cmd.Process.Pid }
func (p *process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

func (p *process) Wait() error {
	err := p.cmd.Wait()
	children.Lock()
	delete(children.all, p.PID())
	children.Unlock()
	close(p.done)
	return err
}

// Reap collects processes that lost their parent, which process 1 of a container inherits,
// until ctx is done. They would stay as zombies.
func Reap(ctx context.Context) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGCHLD)
	defer signal.Stop(signals)
	for {
		own, err := reapOne()
		switch {
		case err != nil:
			return err
		case own != nil: // Wait takes it; then there may be others
			select {
			case <-own:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		select {
		case <-signals:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// reapOne reaps processes until none has ended, or the next is one of Start: then it
// returns a channel that is closed when that is reaped.
func reapOne() (<-chan struct{}, error) {
	for {
		children.Lock()
		pid, err := next()
		if own, ok := children.all[pid]; ok {
			children.Unlock()
			return own, nil
		}
		if pid > 0 {
			_, err = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
		children.Unlock()
		switch {
		case errors.Is(err, unix.ECHILD) || pid == 0 && err == nil:
			return nil, nil //nolint:nilnil // no process has ended
		case err != nil && !errors.Is(err, unix.EINTR):
			return nil, err
		}
	}
}

// next returns a process that has ended, without reaping it, or 0.
func next() (int, error) {
	var info struct {
		signo, errno, code, _ int32
		pid                   int32
		_                     [128 - 5*4]byte
	}
	err := unix.Waitid(unix.P_ALL, 0, (*unix.Siginfo)(unsafe.Pointer(&info)), unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return int(info.pid), err
}
