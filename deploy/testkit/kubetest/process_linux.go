package kubetest

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// sysProcAttr also ties the child to this process: a test that panics leaves
// nothing behind.
func sysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// stopped waits until all threads of a child stand still that was told to stop:
// the signal comes to each some time later.
func stopped(pid int) error {
	for {
		// Left to be seen once more, by a second Pause.
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
