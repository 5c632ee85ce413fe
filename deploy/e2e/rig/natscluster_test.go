package rig

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/deploy/testkit/program"
)

// A cluster loses each of its servers in turn, in each way, and in the end still
// has all acknowledged records.
func TestNATSCluster(t *testing.T) {
	t.Parallel() // most of the test waits for elections
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c, err := StartNATSCluster(ctx, t.TempDir(), ClusterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Kill)
	admin, err := c.Admin()
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(c.URL(), admin, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond),
		nats.PingInterval(time.Second), nats.MaxPingsOutstanding(2), nats.RetryOnFailedConnect(true))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}, Replicas: 3}); err != nil {
		t.Fatal(err)
	}
	acked := 0
	publish := func(what string) {
		t.Helper()
		begin := time.Now()
		if err := program.Until(ctx, "an acknowledgement", func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_, err := js.Publish(ctx, "s", nil)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		acked++
		t.Logf("%s: acknowledged after %v", what, time.Since(begin).Round(time.Millisecond))
	}
	leader := func() *NATS {
		t.Helper()
		n, err := c.Leader(ctx, "S")
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}

	publish("whole")
	n := leader()
	must(n.Pause())
	publish("leader paused")
	must(n.Resume())
	must(c.CaughtUp(ctx, "S"))

	n = leader()
	if n.Wipe() == nil {
		t.Error("the data of a running server was deleted")
	}
	n.Kill()
	must(n.Wipe())
	publish("leader killed, its data deleted")
	must(n.Restart(ctx))
	must(c.CaughtUp(ctx, "S"))

	must(leader().Stop())
	publish("leader stopped")
	c.Kill()
	must(c.Restart(ctx))
	must(c.CaughtUp(ctx, "S"))
	publish("all restarted")
	s, err := leader().stream(ctx, "S")
	must(err)
	// The server may have stored a publish that it did not acknowledge.
	if s.State.First != 1 || s.State.Last < uint64(acked) {
		t.Errorf("the stream has records %d to %d, but %d were acknowledged", s.State.First, s.State.Last, acked)
	}
}
