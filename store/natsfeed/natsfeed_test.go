package natsfeed_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/store/natsfeed"
	"meshlog.dev/store/storetest"
)

// bus is a NATS server that the test can stop and start. Connections to it are in
// process.
type bus struct {
	dir string

	mu     sync.Mutex
	server *server.Server

	conns map[storetest.Feed]*nats.Conn
}

func newBus(t testing.TB) *bus {
	b := &bus{dir: filepath.Join(t.TempDir(), "jetstream"), conns: make(map[storetest.Feed]*nats.Conn)}
	b.start(t)
	t.Cleanup(b.stop)
	nc := b.connect(t)
	e, err := natsfeed.EnsureStreams(t.Context(), nc, natsfeed.StreamOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !e.Created {
		t.Fatal("the stream was there before")
	}
	return b
}

func (b *bus) start(t testing.TB) {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		ServerName: "test", Host: "127.0.0.1", Port: server.RANDOM_PORT, DontListen: true,
		JetStream: true, StoreDir: b.dir, SyncAlways: true, NoLog: true, NoSigs: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("the server does not start")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.server = s
}

func (b *bus) stop() {
	b.mu.Lock()
	s := b.server
	b.server = nil
	b.mu.Unlock()
	if s != nil {
		s.Shutdown()
		s.WaitForShutdown()
	}
}

// InProcessConn connects to the running server.
func (b *bus) InProcessConn() (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.server == nil {
		return nil, errors.New("the server is stopped")
	}
	return b.server.InProcessConn()
}

func (b *bus) connect(t testing.TB) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(b), nats.MaxReconnects(-1), nats.ReconnectWait(time.Millisecond),
		nats.ReconnectJitter(0, 0), nats.ReconnectBufSize(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func (b *bus) open(t testing.TB) (*natsfeed.Feed, *nats.Conn) {
	t.Helper()
	nc := b.connect(t)
	f, err := natsfeed.Open(t.Context(), nc, natsfeed.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b.conns[f] = nc
	return f, nc
}

func (b *bus) Open(t *testing.T) storetest.Feed {
	t.Helper()
	f, _ := b.open(t)
	return f
}

// reconnected calls a function that breaks the connections, and waits until they
// are renewed.
func reconnected(t testing.TB, conns []*nats.Conn, do func()) {
	t.Helper()
	var back []chan nats.Status
	for _, nc := range conns {
		back = append(back, nc.StatusChanged(nats.CONNECTED))
	}
	do()
	for _, ch := range back {
		select {
		case <-ch:
		case <-time.After(time.Minute):
			t.Fatal("no connection after a minute")
		}
	}
}

func (b *bus) Renew(t *testing.T, f storetest.Feed) {
	t.Helper()
	nc := b.conns[f]
	reconnected(t, []*nats.Conn{nc}, func() {
		if err := nc.ForceReconnect(); err != nil {
			t.Fatal(err)
		}
	})
}

// restart stops the server, changes its directory, and starts it.
func (b *bus) restart(t testing.TB, do func()) {
	t.Helper()
	var conns []*nats.Conn
	for _, nc := range b.conns {
		conns = append(conns, nc)
	}
	reconnected(t, conns, func() {
		b.stop()
		do()
		b.start(t)
	})
}

// Expire purges the stream, which must be purgeable.
func (b *bus) Expire(t *testing.T) {
	t.Helper()
	js := jetStream(t, b.connect(t))
	s, err := js.Stream(t.Context(), natsfeed.Stream)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func jetStream(t testing.TB, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// purgeable makes the stream again without deny_purge.
func (b *bus) purgeable(t testing.TB) {
	t.Helper()
	js := jetStream(t, b.connect(t))
	s, err := js.Stream(t.Context(), natsfeed.Stream)
	if err != nil {
		t.Fatal(err)
	}
	config := s.CachedInfo().Config
	config.DenyPurge = false
	if err := js.DeleteStream(t.Context(), natsfeed.Stream); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
}

func (b *bus) Image(t *testing.T) (rewind func()) {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	b.restart(t, func() { copyDir(t, image, b.dir) })
	return func() {
		b.restart(t, func() {
			if err := os.RemoveAll(b.dir); err != nil {
				t.Fatal(err)
			}
			copyDir(t, b.dir, image)
		})
	}
}

func copyDir(t testing.TB, to, from string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

func TestChain(t *testing.T) {
	storetest.Chains(t, func(t *testing.T) storetest.Bus {
		b := newBus(t)
		b.purgeable(t)
		return b
	})
}
