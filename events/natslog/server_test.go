package natslog_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/deploy/testkit/natstest"
	"meshlog.dev/events"
	"meshlog.dev/events/natslog"
	"meshlog.dev/proto/ident"
)

// newLog makes the stream and opens the log.
func newLog(t testing.TB, nc *nats.Conn, o natslog.StreamOptions) *natslog.Log {
	t.Helper()
	if created, err := natslog.EnsureStream(t.Context(), nc, o); err != nil || !created {
		t.Fatalf("EnsureStream = %v, %v", created, err)
	}
	return open(t, nc, o.Options)
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

func begin(n int) events.Event {
	return events.Event{
		ID:   fmt.Sprint("begin-", n),
		Body: &events.Begin{Shard: ident.Shard{Source: "s", Instance: "i"}, Session: fmt.Sprint(n), Holder: "h"},
	}
}

func begins(from, to int) []events.Event {
	var batch []events.Event
	for n := from; n <= to; n++ {
		batch = append(batch, begin(n))
	}
	return batch
}

// TestServerRestart restarts the server over TCP; it keeps its directory.
func TestServerRestart(t *testing.T) {
	s := natstest.StartTCP(t)
	nc := natstest.Connect(t, s.ClientURL())
	l := newLog(t, nc, natslog.StreamOptions{})
	batch := begins(1, 3)
	fence := events.Fence{Kind: events.FenceLog, Generation: l.Generation()}
	if _, err := l.Append(t.Context(), batch, fence); err != nil {
		t.Fatal(err)
	}
	before, err := l.Get(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	f, err := l.Follow(t.Context(), 3, "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	next := make(chan error, 1)
	go func() {
		_, err := f.Next(t.Context())
		next <- err
	}()

	status := nc.StatusChanged(nats.RECONNECTING, nats.CONNECTED)
	defer nc.RemoveStatusListener(status)
	s.Restart(t, func() {
		<-status
		if _, err := l.Append(t.Context(), begins(4, 4), events.Fence{}); err == nil || errors.Is(err, events.ErrConflict) {
			t.Errorf("append without a server: %v", err)
		}
	})
	<-status

	if err := <-next; !errors.Is(err, events.ErrReconnected) {
		t.Errorf("a follower over the restart: %v", err)
	}
	if _, err := l.Append(t.Context(), batch, fence); !errors.Is(err, events.ErrReconnected) {
		t.Errorf("append with the old generation: %v", err)
	}
	for _, retry := range []events.Fence{{}, {Kind: events.FenceLog}} {
		if ack, err := l.Append(t.Context(), batch, retry); err != nil || ack != (events.Ack{Seq: 3, Duplicate: true}) {
			t.Errorf("retry after the restart: %+v, %v", ack, err)
		}
	}
	after, err := l.Get(t.Context(), 3)
	if err != nil || after.Hash != before.Hash {
		t.Errorf("the record has hash %s, %v, before the restart it had %s", after.Hash, err, before.Hash)
	}
	if ack, err := l.Append(t.Context(), begins(4, 4), events.Fence{Kind: events.FenceLog, Seq: 3}); err != nil || ack.Seq != 4 {
		t.Errorf("append: %+v, %v", ack, err)
	}
}

// TestConsumerDeleted deletes the consumer of a follower.
func TestConsumerDeleted(t *testing.T) {
	nc := natstest.Start(t).Connect(t)
	js, l := natstest.JetStream(t, nc), newLog(t, nc, natslog.StreamOptions{})
	f, err := l.Follow(t.Context(), 0, "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for n := 1; n <= 6; n += 2 {
		if _, err := l.Append(t.Context(), begins(n, n+1), events.Fence{}); err != nil {
			t.Fatal(err)
		}
		for want := uint64(n); want <= uint64(n+1); {
			records, err := f.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, got := range records {
				if got.Seq != want {
					t.Fatalf("record %d, want %d", got.Seq, want)
				}
				want++
			}
		}
		stream, err := js.Stream(t.Context(), natslog.Stream)
		if err != nil {
			t.Fatal(err)
		}
		names := stream.ConsumerNames(t.Context())
		for name := range names.Name() {
			if err := stream.DeleteConsumer(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
		if names.Err() != nil {
			t.Fatal(names.Err())
		}
	}
}

// TestFollowerLeavesNothing closes followers: only a bookmark outlives them.
func TestFollowerLeavesNothing(t *testing.T) {
	nc := natstest.Start(t).Connect(t)
	js, l := natstest.JetStream(t, nc), newLog(t, nc, natslog.StreamOptions{})
	deleted, err := nc.SubscribeSync("$JS.EVENT.ADVISORY.CONSUMER.DELETED." + natslog.Stream + ".*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", "builder"} {
		f, err := l.Follow(t.Context(), 0, name)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		m, err := deleted.NextMsgWithContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(m.Subject, ".read-") {
			t.Errorf("%s", m.Subject)
		}
	}
	if _, err := js.Consumer(t.Context(), natslog.Stream, "builder"); err != nil {
		t.Error(err)
	}
}

func TestEnsureStream(t *testing.T) {
	nc := natstest.Start(t).Connect(t)
	js := natstest.JetStream(t, nc)
	o := natslog.StreamOptions{MaxAge: time.Hour, MaxBytes: 1 << 30}
	if created, err := natslog.EnsureStream(t.Context(), nc, o); err != nil || !created {
		t.Fatalf("EnsureStream = %v, %v", created, err)
	}
	want := jetstream.StreamConfig{
		Name:               "MESHLOG_EVENTS",
		Subjects:           []string{"meshlog.ev.mesh.>"},
		Retention:          jetstream.LimitsPolicy,
		Storage:            jetstream.FileStorage,
		Discard:            jetstream.DiscardNew,
		Replicas:           1,
		MaxConsumers:       512,
		MaxMsgs:            -1,
		MaxMsgsPerSubject:  -1,
		MaxAge:             time.Hour,
		MaxBytes:           1 << 30,
		MaxMsgSize:         512 << 10,
		Duplicates:         2 * time.Minute,
		AllowDirect:        true,
		AllowAtomicPublish: true,
		DenyDelete:         true,
		DenyPurge:          true,
	}
	settings := func() jetstream.StreamConfig {
		t.Helper()
		stream, err := js.Stream(t.Context(), "MESHLOG_EVENTS")
		if err != nil {
			t.Fatal(err)
		}
		return stream.CachedInfo().Config
	}
	ignored := cmpopts.IgnoreFields(jetstream.StreamConfig{}, "Metadata", "ConsumerLimits", "Description")
	if diff := cmp.Diff(want, settings(), ignored); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
	// EnsureStream never changes an existing stream.
	for _, step := range []struct {
		o    natslog.StreamOptions
		want string // part of the error; empty: no error
	}{
		{o, ""},
		{natslog.StreamOptions{MaxAge: time.Minute, MaxBytes: 1 << 20, Replicas: 3}, ""},
		{natslog.StreamOptions{MaxAge: 2 * time.Hour}, "max_age: records are kept for 1h0m0s, and are promised to be kept for 2h0m0s"},
		{natslog.StreamOptions{}, "max_age: records are kept for 1h0m0s, and are promised to be kept for ever"},
	} {
		created, err := natslog.EnsureStream(t.Context(), nc, step.o)
		if created || (err == nil) != (step.want == "") || err != nil && !strings.Contains(err.Error(), step.want) {
			t.Errorf("EnsureStream(%+v) = %v, %v", step.o, created, err)
		}
		if diff := cmp.Diff(want, settings(), ignored); diff != "" {
			t.Errorf("settings after EnsureStream(%+v) (-want +got):\n%s", step.o, diff)
		}
	}
}

// TestBrokenStream breaks settings of a stream: EnsureStream and Open refuse it
// and name each setting.
func TestBrokenStream(t *testing.T) {
	for i, test := range []struct {
		breaks func(c *jetstream.StreamConfig)
		want   []string
	}{
		{func(c *jetstream.StreamConfig) { c.Subjects = []string{"other.>"} }, []string{`is "d0" the right domain?`}},
		{func(c *jetstream.StreamConfig) { c.Subjects = append(c.Subjects, "more") }, []string{"subjects: is", "has its stream to itself"}},
		{func(c *jetstream.StreamConfig) { c.AllowAtomicPublish = false }, []string{"allow_atomic: is false, must be true"}},
		{func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy }, []string{"retention: is WorkQueue, must be Limits"}},
		{
			func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject, c.MaxMsgs = 1, 7 },
			[]string{"max_msgs_per_subject: is 1, must be -1", "max_msgs: is 7, must be -1"},
		},
		{func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardOld }, []string{"discard: is DiscardOld, must be DiscardNew"}},
		{
			func(c *jetstream.StreamConfig) { c.DenyDelete, c.DenyPurge = false, false },
			[]string{"deny_delete: is false, must be true", "deny_purge: is false, must be true"},
		},
		{func(c *jetstream.StreamConfig) { c.AllowDirect = false }, []string{"allow_direct: is false, must be true"}},
		{func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1000 }, []string{"max_msg_size: is 1000, must be 524288"}},
		{func(c *jetstream.StreamConfig) { c.AllowMsgTTL = true }, []string{"allow_msg_ttl: is true, must be false"}},
		{func(c *jetstream.StreamConfig) { c.AllowRollup, c.DenyPurge = true, false }, []string{"allow_rollup_hdrs: is true", "deny_purge"}},
	} {
		nc := natstest.Start(t).Connect(t)
		js := natstest.JetStream(t, nc)
		if _, err := natslog.Open(t.Context(), nc, natslog.Options{}); err == nil || !strings.Contains(err.Error(), "open log MESHLOG_EVENTS: there is no such stream") {
			t.Errorf("Open without a stream: %v", err)
		}
		o := natslog.StreamOptions{Options: natslog.Options{Domain: fmt.Sprint("d", i)}}
		c := o.Config()
		test.breaks(&c)
		if _, err := js.CreateStream(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		_, ensured := natslog.EnsureStream(t.Context(), nc, o)
		_, opened := natslog.Open(t.Context(), nc, o.Options)
		for _, want := range test.want {
			for _, err := range []error{ensured, opened} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v does not say %q", err, want)
				}
			}
		}
	}
}

// TestUnder reads the records under one subject, with others in between.
func TestUnder(t *testing.T) {
	l := newLog(t, natstest.Start(t).Connect(t), natslog.StreamOptions{})
	other := events.Event{ID: "other", Body: &events.Begin{Shard: ident.Shard{Source: "s", Instance: "j"}, Session: "1", Holder: "h"}}
	for _, e := range []events.Event{begin(1), other, begin(3), begin(4)} {
		if _, err := l.Append(t.Context(), []events.Event{e}, events.Fence{}); err != nil {
			t.Fatal(err)
		}
	}
	var got []uint64
	for r, err := range l.Under(t.Context(), events.ControlSubject(ident.Shard{Source: "s", Instance: "i"})) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, r.Seq)
	}
	if diff := cmp.Diff([]uint64{1, 3, 4}, got); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	for r, err := range l.Under(t.Context(), "none.s._ctl") {
		t.Errorf("a subject without records has record %d, %v", r.Seq, err)
	}
}

// TestNoAnswer checks that the caller can tell its own deadline from a closed
// connection.
func TestNoAnswer(t *testing.T) {
	nc := natstest.Start(t).Connect(t)
	l := newLog(t, nc, natslog.StreamOptions{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	<-ctx.Done()
	if _, err := l.Bounds(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("bounds after the deadline: %v", err)
	}
	nc.Close()
	if _, err := l.Bounds(t.Context()); !errors.Is(err, events.ErrClosed) {
		t.Errorf("bounds on a closed connection: %v", err)
	}
}
