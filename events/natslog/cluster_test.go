package natslog_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"meshlog.dev/deploy/testkit/natstest"
	"meshlog.dev/events"
	"meshlog.dev/events/natslog"
	"meshlog.dev/proto/ident"
)

// TestClusterReads appends with one client and reads at once with another, on
// every pair of servers.
func TestClusterReads(t *testing.T) {
	t.Parallel() // it waits for an election
	servers := natstest.StartCluster(t)
	logs := []*natslog.Log{newLog(t, servers[0].Connect(t), natslog.StreamOptions{Replicas: 3})}
	for _, s := range servers[1:] {
		logs = append(logs, open(t, s.Connect(t), natslog.Options{}))
	}
	for n := 1; n <= 30; n++ {
		if _, err := logs[n%3].Append(t.Context(), begins(n, n), events.Fence{Kind: events.FenceLog, Seq: uint64(n - 1)}); err != nil {
			t.Fatal(err)
		}
		for i, l := range logs {
			bounds, err := l.Bounds(t.Context())
			if err != nil || bounds.Last != uint64(n) {
				t.Fatalf("after record %d node %d says %+v, %v", n, i, bounds, err)
			}
			last, err := l.Last(t.Context(), events.ControlSubject(ident.Shard{Source: "s", Instance: "i"}))
			if err != nil || last.Seq != uint64(n) {
				t.Fatalf("after record %d node %d says the last is %d, %v", n, i, last.Seq, err)
			}
		}
	}
}

// TestElections makes the stream's leader step down, stops it, and removes its
// data, while one client appends and another one reads. Each acknowledged event
// is on the log once, in order, and the reader gets all of them.
func TestElections(t *testing.T) {
	t.Parallel() // most of it is waiting for elections
	servers := natstest.StartCluster(t)
	var urls []string
	for _, s := range servers {
		urls = append(urls, s.ClientURL())
	}
	nc := natstest.Connect(t, strings.Join(urls, ","))
	l := newLog(t, nc, natslog.StreamOptions{Replicas: 3})

	next := 1
	write := func(n int) {
		t.Helper()
		for range n {
			appendOne(t, l, next)
			next++
		}
	}
	write(20)
	for round := range 3 {
		stepDown(t, nc)
		write(20)
		t.Logf("election %d: %d records", round, next-1)
	}

	leader := leaderOf(t, servers)
	leader.Restart(t, func() {
		write(20)
		if err := os.RemoveAll(leader.Dir); err != nil {
			t.Fatal(err)
		}
	})
	write(20)

	f := follow(t, l)
	defer f.Close()
	for want := 1; want < next; {
		records, err := f.Next(t.Context())
		if errors.Is(err, events.ErrReconnected) {
			f.Close()
			f, want = follow(t, l), 1
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range records {
			if r.Seq != uint64(want) || r.Event.ID != begin(want).ID {
				t.Fatalf("record %d is %s, want %s", r.Seq, r.Event.ID, begin(want).ID)
			}
			want++
		}
	}
	if b, err := l.Bounds(t.Context()); err != nil || b != (events.Bounds{First: 1, Last: uint64(next - 1)}) {
		t.Errorf("bounds %+v, %v; %d were acknowledged", b, err, next-1)
	}
}

// appendOne appends event n at sequence n, and retries until it is acknowledged.
func appendOne(t *testing.T, l *natslog.Log, n int) {
	t.Helper()
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		ack, err := l.Append(ctx, begins(n, n), events.Fence{Kind: events.FenceLog, Seq: uint64(n - 1)})
		cancel()
		switch {
		case err == nil && (ack.Seq == uint64(n) || ack.Duplicate && ack.Seq == 0):
			return
		case err == nil:
			t.Fatalf("event %d was appended as %+v", n, ack)
		case errors.Is(err, events.ErrConflict):
			t.Fatalf("event %d: a conflict without another writer: %v", n, err)
		case t.Context().Err() != nil:
			t.Fatal(err)
		}
	}
}

func follow(t *testing.T, l *natslog.Log) events.Follower {
	t.Helper()
	for {
		f, err := l.Follow(t.Context(), 0, "")
		if err == nil {
			return f
		}
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
}

func stepDown(t *testing.T, nc *nats.Conn) {
	t.Helper()
	m, err := nc.Request("$JS.API.STREAM.LEADER.STEPDOWN."+natslog.Stream, nil, 5*time.Second)
	if err != nil || !strings.Contains(string(m.Data), `"success":true`) {
		t.Fatalf("step down: %v, %v", m, err)
	}
}

// leaderOf returns the server that leads the stream.
func leaderOf(t *testing.T, servers []*natstest.Server) *natstest.Server {
	t.Helper()
	for t.Context().Err() == nil {
		for _, s := range servers {
			if s.JetStreamIsStreamLeader(server.DEFAULT_GLOBAL_ACCOUNT, natslog.Stream) {
				return s
			}
		}
	}
	t.Fatal("no server leads the stream")
	return nil
}
