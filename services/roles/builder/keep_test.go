package builder

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/events"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/store/natsfeed"
)

var quiet = slog.New(slog.DiscardHandler)

// openKeeper returns a keeper of the streams of a new bus.
func openKeeper(t *testing.T) (*keeper, *natsfeed.Feed) {
	t.Helper()
	server, err := bus.StartServer(bus.ServerOptions{Dir: t.TempDir(), Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	nc, err := bus.Connect(bus.ConnectOptions{Server: server, Name: t.Name(), Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	k := &keeper{
		o: &Options{Domain: "mesh", Replicas: 1, Settings: Settings{History: time.Hour, LogMiB: 1}}, nc: nc, log: quiet,
		epoch: func() uint64 { return 0 },
	}
	chain, err := k.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.events.Close() })
	return k, chain
}

// If the blobs' stream was created after the newest epoch began, the epoch has lost
// its blobs.
func TestKeeperDetectsLostBlobs(t *testing.T) {
	k, _ := openKeeper(t)
	js, err := jetstream.New(k.nc)
	if err != nil {
		t.Fatal(err)
	}
	lose := func() {
		t.Helper()
		if err := js.DeleteStream(t.Context(), "OBJ_"+natsfeed.BlobBucket); err != nil {
			t.Fatal(err)
		}
	}
	begun := 0
	begin := func(s *events.Segment) uint64 {
		t.Helper()
		begun++
		ack, err := k.events.Append(t.Context(), []events.Event{{ID: fmt.Sprint("segment ", begun), Body: s}}, events.Fence{})
		if err != nil {
			t.Fatal(err)
		}
		return ack.Seq
	}
	// look compares once, and checks which epoch has lost its blobs; 0: none.
	var lost uint64
	k.lost = func(_ context.Context, epoch uint64) error { lost = epoch; return nil }
	look := func(when string, want uint64) {
		t.Helper()
		lost = 0
		_, made, err := k.ensure(t.Context())
		if err == nil {
			err = k.saw(t.Context(), made)
		}
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if lost != want {
			t.Errorf("%s: epoch %d has lost its blobs, want %d (0: none)", when, lost, want)
		}
	}

	look("before an epoch", 0)
	first := begin(&events.Segment{Epoch: 5, Build: "one"})
	look("in an epoch", 0)
	lose()
	look("the blobs are gone", 5)
	look("no other epoch has begun", 5)
	begin(&events.Segment{Epoch: 5, Build: "two", EpochRecord: first})
	look("another build continues the epoch", 5)
	second := begin(&events.Segment{Epoch: 6, Build: "two"})
	look("an epoch has begun since", 0)
	lose()
	begin(&events.Segment{Epoch: 7, Build: "three"})
	look("an epoch began before the keeper looked", 7)

	// If the record that began the epoch has expired, the epoch's number is its time.
	now := uint64(time.Now().Unix())
	begin(&events.Segment{Epoch: now - 60, Build: "three", EpochRecord: second + 1000})
	look("the record has expired", now-60)
	begin(&events.Segment{Epoch: now + 60, Build: "three", EpochRecord: second + 1000})
	look("the record has expired, and the epoch is younger than the blobs", 0)
}
