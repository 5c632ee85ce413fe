package streams_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/builder/streams"
	"meshlog.dev/services/internal/bus"
)

var quiet = slog.New(slog.DiscardHandler)

// KEY-3: no stream of a mesh stores a request for a key, or its answer.
func TestNoStreamStoresKeyRequests(t *testing.T) {
	s, err := bus.StartServer(bus.ServerOptions{Dir: t.TempDir(), Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	connect := func() *bus.Conn {
		nc, err := bus.Connect(bus.ConnectOptions{Server: s, Name: t.Name(), Log: quiet})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}
	frontend, watcher := connect(), connect()
	js, err := jetstream.New(frontend)
	if err != nil {
		t.Fatal(err)
	}
	all := streams.All("mesh", streams.Sizes{Replicas: 1, History: time.Hour, LogBytes: 1 << 20})
	for _, c := range all {
		if _, err := js.CreateStream(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}

	shard := ident.Shard{Source: "kubernetes", Instance: "eu"}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- bus.NewFleet(watcher, "mesh", quiet).ServeKeys(ctx, shard, bus.KeyAnswers{Answer: func(_ context.Context, request []byte) []byte { return request }})
	}()
	for {
		_, err := bus.NewFleet(frontend, "mesh", quiet).RequestKey(t.Context(), shard, []byte("x"))
		if err == nil {
			break
		}
		if !errors.Is(err, bus.ErrNoKeeper) {
			t.Fatal(err)
		}
	}

	// The test hears what passes, so that it knows that there was something to store. It subscribes only
	// now: its subscription counts as a responder, and an earlier request would wait for its answer.
	heard := make(chan *nats.Msg, 100)
	sub, err := watcher.ChanSubscribe(">", heard)
	if err != nil {
		t.Fatal(err)
	}
	if err := watcher.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, err := bus.NewFleet(frontend, "mesh", quiet).RequestKey(t.Context(), shard, []byte("x")); err != nil {
		t.Fatal(err)
	}
	for found := false; !found; {
		found = (<-heard).Subject == "meshlog.key.mesh.kubernetes.eu"
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := sub.Unsubscribe(); err != nil {
		t.Error(err)
	}
	for _, c := range all {
		stream, err := js.Stream(t.Context(), c.Name)
		if err != nil {
			t.Fatal(err)
		}
		if state := stream.CachedInfo().State; state.LastSeq != 0 {
			t.Errorf("%s stores %d messages", c.Name, state.LastSeq)
		}
	}
	if len(all) != 6 {
		t.Errorf("a mesh has %d streams; the hub's account is limited to 6", len(all))
	}
}
