//go:build !linux

package sds

import (
	"errors"
	"net"
)

// peer refuses: only Linux tells here which user a process is of.
func peer(*net.UnixConn) (int, error) {
	return -1, errors.New("the agent runs on Linux only")
}
