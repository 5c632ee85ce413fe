//go:build unix && !linux

package program

import "syscall"

func sysProcAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// stopped does not wait on these systems: the process stops some time later.
func stopped(int) error { return nil }
