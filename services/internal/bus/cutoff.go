package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/jsapi"
)

// A server that a network cuts off from the rest of its cluster keeps its
// clients, and answers their pings: nothing that is said elsewhere reaches
// them, and JetStream answers no more. Nobody but the client can end that. Each
// connection asks who leads JetStream, and goes to another server when this one
// does not know for a while.
const (
	leaderEvery   = 5 * time.Second
	leaderWait    = 2 * time.Second
	leaderMissed  = 2
	abandonAtMost = time.Minute // between two servers, where none knows
)

// stayUseful leaves servers that are cut off, until the connection is closed.
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
		case server != nc.ConnectedUrlRedacted(), errors.As(err, new(*jsapi.DeniedError)): // which has been said
			missed = 0
		default:
			missed++
		}
		if missed < leaderMissed {
			continue
		}
		l.o.Log.Warn("the bus's server knows of no leader, as if cut off from the others; going to another one", "url", server, "error", err)
		if err := nc.ForceReconnect(); err != nil {
			l.o.Log.Warn("the bus's server cannot be left", "error", err)
		}
		missed, pause = 0, min(2*pause, abandonAtMost)
	}
}

// askLeader asks for what only the leader of all of JetStream answers.
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
