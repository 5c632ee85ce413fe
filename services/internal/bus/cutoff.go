package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/proto/jsapi"
)

// A server that the network cuts off from its cluster keeps its clients and
// answers their pings, but JetStream does not answer, and messages of other
// servers do not arrive. Only the client can end that. Each connection asks for
// JetStream's leader, and moves to another server if its own does not know the
// leader for a while.
const (
	leaderEvery   = 5 * time.Second
	leaderWait    = 2 * time.Second
	leaderMissed  = 2
	abandonAtMost = time.Minute // between two moves, if no server knows the leader
)

// stayUseful moves the connection away from servers that are cut off, until it is
// closed.
func (l *link) stayUseful(nc *nats.Conn, closed <-chan nats.Status, every time.Duration) {
	for missed, pause := 0, every; ; {
		select {
		case <-closed:
			return
		case <-time.After(pause):
		}
		server := nc.ConnectedUrlRedacted()
		if !nc.IsConnected() || len(nc.Servers()) < 2 {
			missed, pause = 0, every
			continue
		}
		err := askLeader(nc)
		switch {
		case err == nil:
			missed, pause = 0, every
		case server != nc.ConnectedUrlRedacted(), errors.As(err, new(*jsapi.DeniedError)): // which onError has logged
			missed = 0
		default:
			missed++
		}
		if missed < leaderMissed {
			continue
		}
		l.o.Log.Warn("the server of the bus does not know the leader, it may be cut off from its cluster; connecting to another server", "url", server, "error", err)
		if err := nc.ForceReconnect(); err != nil {
			l.o.Log.Warn("cannot connect to another server of the bus", "error", err)
		}
		missed, pause = 0, min(2*pause, abandonAtMost)
	}
}

// askLeader sends a request that only JetStream's leader answers.
func askLeader(nc *nats.Conn) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("ask JetStream's leader: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaderWait)
	defer cancel()
	if _, err := js.AccountInfo(ctx); err != nil {
		return fmt.Errorf("ask JetStream's leader: %w", jsapi.Explain(nc, err, jsapi.AccountInfo))
	}
	return nil
}
