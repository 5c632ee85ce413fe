//go:build unix

package ca

import "syscall"

// noCoreDumps makes the system write no core dump of this process: it would have the CA's
// key (KEY-1).
func noCoreDumps() error { return syscall.Setrlimit(syscall.RLIMIT_CORE, new(syscall.Rlimit)) }
