package suite

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/deploy/testkit/natstest"
	"meshlog.dev/events"
	"meshlog.dev/events/natslog"
	"meshlog.dev/proto/jsapi"
)

// openNatslog opens a log on a server of its own.
func openNatslog(t *testing.T) Driver {
	o := natslog.StreamOptions{Options: natslog.Options{Domain: "mesh.1"}}
	return newRig(t, natstest.Start(t).Connect(t), o).driver()
}

// startNatslogCluster opens logs with three replicas on three servers. A cluster
// has other codes for conflicts and other answers to retries, and its replicas lag.
func startNatslogCluster(t *testing.T) func(t *testing.T) Driver {
	servers := natstest.StartCluster(t)
	opened := 0
	return func(t *testing.T) Driver {
		opened++
		s := servers[opened%len(servers)]
		o := natslog.StreamOptions{Replicas: 3, Options: natslog.Options{Domain: fmt.Sprint("mesh-", opened)}}
		r := newRig(t, s.Connect(t), o)
		t.Cleanup(func() { must(t, r.js.DeleteStream(context.Background(), natslog.Stream)) }) // the next log needs its name
		return r.driver()
	}
}

// storeFailed is the server's error while it still deletes the files of an earlier
// stream with the same name.
const storeFailed jetstream.ErrorCode = 10049

// create makes the stream.
func create(t *testing.T, nc *nats.Conn, o natslog.StreamOptions) {
	t.Helper()
	created, err := natslog.EnsureStream(t.Context(), nc, o)
	for jsapi.Code(err) == storeFailed {
		<-time.After(10 * time.Millisecond)
		created, err = natslog.EnsureStream(t.Context(), nc, o)
	}
	if err != nil || !created {
		t.Fatalf("EnsureStream = %v, %v", created, err)
	}
}

// rig is a natslog and the stream under it.
type rig struct {
	t   *testing.T
	nc  *nats.Conn
	js  jetstream.JetStream
	o   natslog.StreamOptions
	log *natslog.Log

	foreign int // calls of appendForeign
}

func newRig(t *testing.T, nc *nats.Conn, o natslog.StreamOptions) *rig {
	t.Helper()
	create(t, nc, o)
	l, err := natslog.Open(t.Context(), nc, o.Options)
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	return &rig{t: t, nc: nc, js: natstest.JetStream(t, nc), o: o, log: l}
}

func (r *rig) driver() Driver {
	return Driver{
		Log:           r.log,
		AppendRaw:     r.appendRaw,
		AppendForeign: r.appendForeign,
		Trim:          r.trim,
		Rewind:        r.rewind,
		Reconnect:     func() { natstest.Reconnect(r.t, r.nc) },
		SetFull:       r.setFull,
		Acked:         r.acked,
	}
}

func (r *rig) appendRaw(s events.Subject, raw []byte) {
	r.t.Helper()
	_, err := r.js.Publish(r.t.Context(), s.In(r.o.Domain), raw, jetstream.WithExpectStream(natslog.Stream))
	must(r.t, err)
}

// appendForeign lets the server write to the log first: it keeps the bytes in
// another stream and asks for them with the subject as the reply. After that it
// publishes without the headers of a Log.
func (r *rig) appendForeign(s events.Subject, raw []byte) {
	r.t.Helper()
	r.foreign++
	if r.foreign > 1 {
		_, err := r.js.Publish(r.t.Context(), s.In(r.o.Domain), raw)
		must(r.t, err)
		return
	}
	before, err := r.log.Bounds(r.t.Context())
	must(r.t, err)
	_, err = r.js.CreateStream(r.t.Context(), jetstream.StreamConfig{
		Name: "SCRATCH", Subjects: []string{"scratch"}, AllowDirect: true, Storage: jetstream.MemoryStorage,
	})
	must(r.t, err)
	defer func() { must(r.t, r.js.DeleteStream(context.Background(), "SCRATCH")) }()
	_, err = r.js.Publish(r.t.Context(), "scratch", raw)
	must(r.t, err)
	must(r.t, r.nc.PublishRequest(jsapi.DirectGet+"SCRATCH", s.In(r.o.Domain), []byte(`{"seq":1}`)))
	f, err := r.log.Follow(r.t.Context(), before.Last, "")
	must(r.t, err)
	_, err = f.Next(r.t.Context())
	must(r.t, err)
	must(r.t, f.Close())
}

// update changes the stream's settings.
func (r *rig) update(change func(*jetstream.StreamConfig, jetstream.StreamState)) {
	r.t.Helper()
	s, err := r.js.Stream(r.t.Context(), natslog.Stream)
	must(r.t, err)
	info := s.CachedInfo()
	change(&info.Config, info.State)
	_, err = r.js.UpdateStream(r.t.Context(), info.Config)
	must(r.t, err)
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
	s, err := r.js.Stream(r.t.Context(), natslog.Stream)
	must(r.t, err)
	var kept []*nats.Msg
	for seq := uint64(1); seq <= last; seq++ {
		m, err := s.GetMsg(r.t.Context(), seq)
		must(r.t, err)
		kept = append(kept, &nats.Msg{Subject: m.Subject, Data: m.Data, Header: nats.Header{
			jetstream.MsgIDHeader:          m.Header[jetstream.MsgIDHeader],
			jetstream.ExpectedStreamHeader: m.Header[jetstream.ExpectedStreamHeader],
		}})
	}
	must(r.t, r.js.DeleteStream(r.t.Context(), natslog.Stream))
	create(r.t, r.nc, r.o)
	for _, m := range kept {
		_, err := r.js.PublishMsg(r.t.Context(), m)
		must(r.t, err)
	}
	natstest.Reconnect(r.t, r.nc)
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
	c, err := r.js.Consumer(r.t.Context(), natslog.Stream, events.Token(name))
	must(r.t, err)
	return c.CachedInfo().AckFloor.Stream
}
