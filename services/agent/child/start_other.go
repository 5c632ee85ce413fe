//go:build !linux

package child

import (
	"context"
	"errors"
)

var errLinux = errors.New("the agent runs on Linux only")

// Start is a Starter.
func Start(Command) (Process, error) { return nil, errLinux }

// Reap collects nothing.
func Reap(context.Context) error { return errLinux }
