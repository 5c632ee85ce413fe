package up

import (
	"context"
	"net"

	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
)

// opened is the console of this process, and its listener: nil if there is none.
type opened struct {
	Console
	listener net.Listener
	process  *process.Process
	data     string // directory
}

func (s *Settings) openConsole(p *process.Process) (*opened, error) {
	c := &opened{Console: s.Console, process: p, data: s.Data}
	if s.Console == nil {
		return c, nil
	}
	var err error
	c.listener, err = s.Console.Open(p.Log)
	return c, err
}

func (c *opened) close() {
	if c.listener != nil {
		c.listener.Close()
	}
}

// run serves until ctx is done; without a console it waits for that.
func (c *opened) run(ctx context.Context, connect func(bus.Role, string) func(context.Context) (*bus.Conn, error)) error {
	if c.listener == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	return c.Run(ctx, process.DefaultDomain, c.data, c.listener, connect(c.Role(), "console"), c.process)
}
