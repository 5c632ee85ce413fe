package natslog_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"meshlog.dev/deploy/testkit/testport"
	"meshlog.dev/events"
	"meshlog.dev/events/eventstest"
	"meshlog.dev/events/natslog"
	"meshlog.dev/proto/ident"
)

// TestCluster runs the suite on three servers and three replicas: a cluster has
// other codes for conflicts, answers retries in another way, and replicas lag.
func TestCluster(t *testing.T) {
	t.Parallel() // most of it is waiting for an election
	servers := runCluster(t)
	t.Run("reads", func(t *testing.T) { testClusterReads(t, servers) })
	tests := 0
	eventstest.Run(t, func(t *testing.T) eventstest.Driver {
		tests++
		s := servers[tests%len(servers)]
		o := natslog.StreamOptions{Replicas: 3, Options: natslog.Options{
			Domain: fmt.Sprint("mesh-", tests), Stream: fmt.Sprint("EVENTS_", tests),
		}}
		return newRig(t, connect(t, s, nats.InProcessServer(s)), o).driver()
	})
}

// testClusterReads appends with one client and reads at once with another, on
// every pair of servers.
func testClusterReads(t *testing.T, servers []*server.Server) {
	var logs []*natslog.Log
	for _, s := range servers {
		nc := connect(t, s, nats.InProcessServer(s))
		if len(logs) == 0 {
			logs = append(logs, newRig(t, nc, natslog.StreamOptions{Replicas: 3}).log)
			continue
		}
		logs = append(logs, open(t, nc, natslog.Options{}))
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

func runCluster(t *testing.T) []*server.Server {
	t.Helper()
	// Each must know the others' ports before any of them starts.
	var routes []string
	var ports []int
	for range 3 {
		port, err := testport.TCP()
		if err != nil {
			t.Fatal(err)
		}
		routes = append(routes, fmt.Sprint("nats://127.0.0.1:", port))
		ports = append(ports, port)
	}
	var servers []*server.Server
	for i := range 3 {
		servers = append(servers, startServer(t, &server.Options{
			ServerName: fmt.Sprint("node-", i),
			Host:       "127.0.0.1", // without a listener it makes no routes
			Port:       -1,
			StoreDir:   t.TempDir(),
			Cluster:    server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: ports[i]},
			Routes:     server.RoutesFromStr(strings.Join(routes, ",")),
		}))
	}
	for _, s := range servers {
		waitReady(t, s)
	}
	return servers
}
