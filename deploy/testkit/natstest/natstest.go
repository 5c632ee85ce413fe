// Package natstest runs NATS servers with JetStream in the process of a test: one
// server, or a cluster of three.
package natstest

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/deploy/testkit/testport"
)

// patience is how long a server may take to start, and a client to reconnect.
const patience = time.Minute

// Server is a NATS server. It syncs every write before it acknowledges it, as in
// production. One goroutine uses it.
type Server struct {
	// Dir holds the streams.
	Dir string

	options *server.Options
	conns   []*nats.Conn // the connections that Restart waits for

	mu sync.Mutex // guards the embedded field, which clients read to reconnect
	*server.Server
}

// Start runs a server until the test ends. Only Server.Connect reaches it.
func Start(t testing.TB) *Server {
	t.Helper()
	s := start(t, &server.Options{ServerName: "test", DontListen: true})
	s.ready(t)
	return s
}

// StartTCP is Start for a server that also listens on a free port of loopback.
func StartTCP(t testing.TB) *Server {
	t.Helper()
	s := start(t, &server.Options{ServerName: "test", Host: "127.0.0.1", Port: freePort(t)})
	s.ready(t)
	return s
}

// StartCluster runs three servers that form a cluster. All of them listen.
func StartCluster(t testing.TB) []*Server {
	t.Helper()
	var ports [3]int // each server knows the ports of all before any of them starts
	var routes []string
	for i := range ports {
		ports[i] = freePort(t)
		routes = append(routes, fmt.Sprint("nats://127.0.0.1:", ports[i]))
	}
	var servers []*Server
	for i, port := range ports {
		servers = append(servers, start(t, &server.Options{
			ServerName: fmt.Sprint("node-", i),
			Host:       "127.0.0.1", // a server that does not listen makes no routes
			Port:       freePort(t),
			Cluster:    server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: port},
			Routes:     server.RoutesFromStr(strings.Join(routes, ",")),
		}))
	}
	for _, s := range servers {
		s.ready(t)
	}
	return servers
}

// freePort returns a port that is still free when a server listens on it again.
func freePort(t testing.TB) int {
	t.Helper()
	port, err := testport.TCP()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// start starts a server with a directory of its own, and stops it after the test.
func start(t testing.TB, o *server.Options) *Server {
	t.Helper()
	s := &Server{Dir: t.TempDir(), options: o}
	o.JetStream, o.StoreDir, o.SyncAlways = true, s.Dir, true
	o.NoSigs, o.NoLog = true, true
	s.run(t)
	t.Cleanup(s.stop)
	return s
}

func (s *Server) run(t testing.TB) {
	t.Helper()
	ns, err := server.NewServer(s.options)
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Server = ns
}

func (s *Server) ready(t testing.TB) {
	t.Helper()
	if !s.ReadyForConnections(patience) {
		t.Fatal("the NATS server does not start")
	}
}

func (s *Server) stop() {
	s.Shutdown()
	s.WaitForShutdown()
}

// Restart stops the server, calls stopped, and starts the server again with the
// same directory and ports. It returns when the connections of Server.Connect are
// back.
func (s *Server) Restart(t testing.TB, stopped func()) {
	t.Helper()
	s.conns = slices.DeleteFunc(s.conns, (*nats.Conn).IsClosed)
	reconnected(t, s.conns, func() {
		s.stop()
		stopped()
		s.run(t)
		s.ready(t)
	})
}

// InProcessConn connects to the server that runs at the time of the call.
func (s *Server) InProcessConn() (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Server.InProcessConn()
}

// Connect connects without a network, and closes the connection after the test.
func (s *Server) Connect(t testing.TB) *nats.Conn {
	t.Helper()
	nc := Connect(t, "", nats.InProcessServer(s))
	s.conns = append(s.conns, nc)
	return nc
}

// Connect connects to one of several URLs, separated by commas, and closes the
// connection after the test. The client reconnects at once and without a limit. While
// it is disconnected, it fails requests instead of buffering them.
func Connect(t testing.TB, urls string, opts ...nats.Option) *nats.Conn {
	t.Helper()
	opts = append(opts, nats.ReconnectBufSize(-1),
		nats.MaxReconnects(-1), nats.ReconnectWait(5*time.Millisecond), nats.ReconnectJitter(0, 0))
	nc, err := nats.Connect(urls, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// Reconnect breaks a connection and returns when it is back.
func Reconnect(t testing.TB, nc *nats.Conn) {
	t.Helper()
	reconnected(t, []*nats.Conn{nc}, func() {
		if err := nc.ForceReconnect(); err != nil {
			t.Fatal(err)
		}
	})
}

// reconnected calls interrupt, which breaks connections, and waits until they are
// back.
func reconnected(t testing.TB, conns []*nats.Conn, interrupt func()) {
	t.Helper()
	var back []chan nats.Status
	for _, nc := range conns {
		status := nc.StatusChanged(nats.CONNECTED)
		defer nc.RemoveStatusListener(status)
		back = append(back, status)
	}
	interrupt()
	for _, status := range back {
		select {
		case <-status:
		case <-time.After(patience):
			t.Fatal("the client does not reconnect")
		}
	}
}

// JetStream returns the API of a connection's server.
func JetStream(t testing.TB, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}
