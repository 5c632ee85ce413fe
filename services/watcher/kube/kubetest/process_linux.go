package kubetest

import "syscall"

// sysProcAttr also ties the child to this process: a test that panics leaves
// nothing behind.
func sysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
