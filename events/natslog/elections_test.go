package natslog_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"meshlog.dev/events"
	"meshlog.dev/events/natslog"
)

// TestElections makes the stream's leader step down, stops it, and removes its
// data, while one client appends and another one reads. Each acknowledged event
// is on the log once, in order, and the reader gets all of them.
func TestElections(t *testing.T) {
	t.Parallel() // most of it is waiting for elections
	servers := runCluster(t)
	var urls []string
	for _, s := range servers {
		urls = append(urls, s.ClientURL())
	}
	nc, err := nats.Connect(strings.Join(urls, ","), nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	l := newRig(t, nc, natslog.StreamOptions{Replicas: 3}).log

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

	i := leaderOf(t, servers)
	o := &server.Options{
		ServerName: servers[i].Name(), Host: "127.0.0.1", Port: -1, StoreDir: servers[i].StoreDir(),
		Cluster: server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: servers[i].ClusterAddr().Port},
		Routes:  server.RoutesFromStr(routesTo(servers)),
	}
	servers[i].Shutdown()
	servers[i].WaitForShutdown()
	write(20)
	if err := os.RemoveAll(o.StoreDir); err != nil {
		t.Fatal(err)
	}
	servers[i] = startServer(t, o)
	waitReady(t, servers[i])
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
			t.Fatalf("event %d came to %+v", n, ack)
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
	m, err := nc.Request("$JS.API.STREAM.LEADER.STEPDOWN."+natslog.DefaultStream, nil, 5*time.Second)
	if err != nil || !strings.Contains(string(m.Data), `"success":true`) {
		t.Fatalf("step down: %v, %v", m, err)
	}
}

// leaderOf returns the server that leads the stream.
func leaderOf(t *testing.T, servers []*server.Server) int {
	t.Helper()
	for t.Context().Err() == nil {
		for i, s := range servers {
			if s.JetStreamIsStreamLeader(server.DEFAULT_GLOBAL_ACCOUNT, natslog.DefaultStream) {
				return i
			}
		}
	}
	t.Fatal("no server leads the stream")
	return 0
}

func routesTo(servers []*server.Server) string {
	var routes []string
	for _, s := range servers {
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", s.ClusterAddr().Port))
	}
	return strings.Join(routes, ",")
}
