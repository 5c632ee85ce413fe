package sds

import (
	"net"
	"syscall"
)

// peer returns the user id of the process that opened c.
func peer(c *net.UnixConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	var cred *syscall.Ucred
	var asked error
	if err := raw.Control(func(fd uintptr) {
		cred, asked = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil {
		return -1, err
	}
	if asked != nil {
		return -1, asked
	}
	return int(cred.Uid), nil
}
