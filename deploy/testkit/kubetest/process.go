package kubetest

import (
	"context"
	"time"

	"meshlog.dev/deploy/testkit/program"
)

// timeout limits the waits for what a server that runs has to do.
const timeout = 2 * time.Minute

// Process is etcd or the API server.
type Process = program.Server

// until is program.Until with the timeout of this package.
func until(ctx context.Context, what string, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return program.Until(ctx, what, check)
}
