package rig

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// NATS is a NATS server with JetStream as a process of its own, opened by a
// token.
type NATS struct {
	*Process
	Port      int
	Token     string
	TokenFile string
}

// StartNATS starts a server that keeps its streams in dir and syncs each write
// before it acknowledges it, and waits until it takes connections.
func StartNATS(ctx context.Context, dir string) (*NATS, error) {
	bin, err := Tool(ctx, "nats-server")
	if err != nil {
		return nil, err
	}
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	n := &NATS{Port: port, Token: "only-on-loopback", TokenFile: filepath.Join(dir, "nats.token")}
	config := filepath.Join(dir, "nats.conf")
	err = os.WriteFile(config, fmt.Appendf(nil, `server_name: rig
listen: "127.0.0.1:%d"
authorization { token: %q }
jetstream { store_dir: %q, sync_interval: always }
`, port, n.Token, filepath.Join(dir, "nats")), 0o600)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(n.TokenFile, []byte(n.Token+"\n"), 0o600); err != nil {
		return nil, err
	}
	n.Process, err = Start("nats-server", dir, []string{bin, "-c", config})
	if err != nil {
		return nil, err
	}
	return n, n.listening(ctx)
}

// Restart starts the server anew, with the same streams on the same port. It
// must have ended.
func (n *NATS) Restart(ctx context.Context) error {
	p, err := n.Again()
	if err != nil {
		return err
	}
	n.Process = p
	return n.listening(ctx)
}

// listening waits until the server takes connections, and kills one that does
// not.
func (n *NATS) listening(ctx context.Context) error {
	err := n.UntilAlive(ctx, "the NATS server to listen", func(ctx context.Context) error {
		return dial(ctx, loopback(n.Port))
	})
	if err != nil {
		n.Kill()
	}
	return err
}

// URL is where clients connect.
func (n *NATS) URL() string { return "nats://" + loopback(n.Port) }
