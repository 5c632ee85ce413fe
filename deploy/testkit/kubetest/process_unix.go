//go:build unix && !linux

package kubetest

import "syscall"

func sysProcAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// stopped cannot be asked here: the signal comes some time later.
func stopped(int) error { return nil }
