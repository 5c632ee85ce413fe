package natslog

import (
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/natstest"
	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
)

// TestSilence checks that a follower replaces a consumer that sends nothing. Here
// the consumer is silent because the follower's subscription is gone.
func TestSilence(t *testing.T) {
	t.Parallel() // it waits for the silence to last
	nc := natstest.Start(t).Connect(t)
	if _, err := EnsureStream(t.Context(), nc, StreamOptions{}); err != nil {
		t.Fatal(err)
	}
	l, err := Open(t.Context(), nc, Options{})
	if err != nil {
		t.Fatal(err)
	}
	opened, err := l.Follow(t.Context(), 0, "")
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	f := opened.(*follower)
	silent := f.reader
	if err := silent.sub.Unsubscribe(); err != nil {
		t.Fatal(err)
	}

	e := events.Event{ID: "x", Body: &events.Begin{Shard: ident.Shard{Source: "s", Instance: "i"}, Session: "1", Holder: "h"}}
	if _, err := l.Append(t.Context(), []events.Event{e}, events.Fence{}); err != nil {
		t.Fatal(err)
	}
	since := time.Now()
	records, err := f.Next(t.Context())
	if err != nil || len(records) != 1 || records[0].Seq != 1 {
		t.Fatalf("next = %+v, %v", records, err)
	}
	if f.reader == silent || time.Since(since) < silence {
		t.Errorf("the record came after %s, from the first consumer: %v", time.Since(since), f.reader == silent)
	}
}
