package program

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// sysProcAttr also makes the kernel kill the child when this program ends, so that
// a test that panics leaves no process behind.
func sysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// StartAs is Start for a process of another user and of the group with the same number,
// which has these capabilities. The process is in the network namespace of the calling
// thread, as one of Start is. Only root can start it.
func StartAs(uid uint32, capabilities []uintptr, name, dir string, argv ...string) (*Process, error) {
	attr := sysProcAttr()
	attr.Credential = &syscall.Credential{Uid: uid, Gid: uid}
	attr.AmbientCaps = capabilities
	return start(name, dir, argv, nil, attr)
}

// stopped waits until all threads of a child have stopped. The kernel delivers
// SIGSTOP to each of them some time after the signal was sent.
func stopped(pid int) error {
	for {
		// WNOWAIT keeps the state for the wait of a second Pause.
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
