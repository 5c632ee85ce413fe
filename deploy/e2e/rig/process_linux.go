package rig

import "syscall"

// sysProcAttr also ties the child to this process, so that a test that panics
// leaves no process behind.
func sysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
