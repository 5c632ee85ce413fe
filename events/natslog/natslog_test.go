package natslog_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/events"
	"meshlog.dev/events/eventstest"
	"meshlog.dev/events/natslog"
)

// TestSuite runs on one server, each test in a stream of its own.
func TestSuite(t *testing.T) {
	s := runServer(t, &server.Options{DontListen: true, StoreDir: t.TempDir()})
	streams := 0
	eventstest.Run(t, func(t *testing.T) eventstest.Driver {
		streams++
		o := natslog.Options{Domain: fmt.Sprint("mesh.", streams), Stream: fmt.Sprint("EVENTS_", streams)}
		return newRig(t, connect(t, s, nats.InProcessServer(s)), natslog.StreamOptions{Options: o}).driver()
	})
}

// rig is a log and the stream under it.
type rig struct {
	t   testing.TB
	nc  *nats.Conn
	js  jetstream.JetStream
	o   natslog.StreamOptions
	log *natslog.Log
}

func newRig(t testing.TB, nc *nats.Conn, o natslog.StreamOptions) *rig {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	created, err := natslog.EnsureStream(t.Context(), nc, o)
	if err != nil || !created {
		t.Fatalf("EnsureStream = %v, %v", created, err)
	}
	return &rig{t: t, nc: nc, js: js, o: o, log: open(t, nc, o.Options)}
}

func (r *rig) driver() eventstest.Driver {
	return eventstest.Driver{
		Log:       r.log,
		AppendRaw: r.appendRaw,
		Trim:      r.trim,
		Rewind:    r.rewind,
		Reconnect: r.reconnect,
		SetFull:   r.setFull,
		Acked:     r.acked,
	}
}

func (r *rig) appendRaw(s events.Subject, raw []byte) {
	r.t.Helper()
	if _, err := r.js.Publish(r.t.Context(), s.In(r.o.Domain), raw); err != nil {
		r.t.Fatal(err)
	}
}

// update changes the stream's settings.
func (r *rig) update(change func(*jetstream.StreamConfig, jetstream.StreamState)) {
	r.t.Helper()
	s, err := r.js.Stream(r.t.Context(), r.o.Stream)
	if err != nil {
		r.t.Fatal(err)
	}
	info := s.CachedInfo()
	change(&info.Config, info.State)
	if _, err := r.js.UpdateStream(r.t.Context(), info.Config); err != nil {
		r.t.Fatal(err)
	}
}

// trim drops records as MaxAge does, without waiting; the stream denies purges.
func (r *rig) trim(first uint64) {
	r.t.Helper()
	r.update(func(c *jetstream.StreamConfig, state jetstream.StreamState) {
		c.Discard = jetstream.DiscardOld
		c.MaxMsgs = int64(state.LastSeq - first + 1)
	})
	r.update(func(c *jetstream.StreamConfig, _ jetstream.StreamState) {
		c.Discard = jetstream.DiscardNew
		c.MaxMsgs = -1
	})
}

// rewind replaces the stream by one with its first messages only.
func (r *rig) rewind(last uint64) {
	r.t.Helper()
	s, err := r.js.Stream(r.t.Context(), r.o.Stream)
	if err != nil {
		r.t.Fatal(err)
	}
	var kept []*nats.Msg
	for seq := uint64(1); seq <= last; seq++ {
		m, err := s.GetMsg(r.t.Context(), seq)
		if err != nil {
			r.t.Fatal(err)
		}
		kept = append(kept, &nats.Msg{Subject: m.Subject, Data: m.Data, Header: nats.Header{
			jetstream.MsgIDHeader: m.Header[jetstream.MsgIDHeader],
		}})
	}
	if err := r.js.DeleteStream(r.t.Context(), r.o.Stream); err != nil {
		r.t.Fatal(err)
	}
	if _, err := natslog.EnsureStream(r.t.Context(), r.nc, r.o); err != nil {
		r.t.Fatal(err)
	}
	for _, m := range kept {
		if _, err := r.js.PublishMsg(r.t.Context(), m); err != nil {
			r.t.Fatal(err)
		}
	}
	r.reconnect()
}

func (r *rig) reconnect() {
	r.t.Helper()
	connected := r.nc.StatusChanged(nats.CONNECTED)
	defer r.nc.RemoveStatusListener(connected)
	if err := r.nc.ForceReconnect(); err != nil {
		r.t.Fatal(err)
	}
	<-connected
}

func (r *rig) setFull(full bool) {
	r.t.Helper()
	r.update(func(c *jetstream.StreamConfig, state jetstream.StreamState) {
		if c.MaxBytes = -1; full {
			c.MaxBytes = int64(state.Bytes)
		}
	})
}

func (r *rig) acked(name string) uint64 {
	r.t.Helper()
	c, err := r.js.Consumer(r.t.Context(), r.o.Stream, events.Token(name))
	if err != nil {
		r.t.Fatal(err)
	}
	return c.CachedInfo().AckFloor.Stream
}

// runServer starts a server that syncs before it answers, as in production.
func runServer(t testing.TB, o *server.Options) *server.Server {
	t.Helper()
	s := startServer(t, o)
	waitReady(t, s)
	return s
}

func startServer(t testing.TB, o *server.Options) *server.Server {
	t.Helper()
	o.NoSigs = true
	o.NoLog = true
	o.JetStream = true
	o.SyncAlways = true
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	return s
}

func waitReady(t testing.TB, s *server.Server) {
	t.Helper()
	if !s.ReadyForConnections(30 * time.Second) {
		t.Fatal("the server does not get ready")
	}
}

var clients atomic.Int64

// connect connects as the package documentation demands.
func connect(t testing.TB, s *server.Server, opts ...nats.Option) *nats.Conn {
	t.Helper()
	opts = append([]nats.Option{
		nats.Name(fmt.Sprint("client-", clients.Add(1))),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(5 * time.Millisecond),
		nats.ReconnectJitter(0, 0),
		nats.ReconnectBufSize(-1),
	}, opts...)
	nc, err := nats.Connect(s.ClientURL(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func open(t testing.TB, nc *nats.Conn, o natslog.Options) *natslog.Log {
	t.Helper()
	l, err := natslog.Open(t.Context(), nc, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}
