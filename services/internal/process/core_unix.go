//go:build unix

package process

import "syscall"

// noCoreDumps makes the system write no core dump of this process or of one that it
// starts: it would have private keys (KEY-1).
func noCoreDumps() error { return syscall.Setrlimit(syscall.RLIMIT_CORE, new(syscall.Rlimit)) }
