package natsfeed_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"

	"meshlog.dev/store"
)

// More messages arrive than the buffer of an idle follower holds.
func TestSlowFollower(t *testing.T) {
	b := newBus(t)
	f, _ := open(t, b)
	first := publish(t, f, store.Stored{}, 1, nil)
	fo, err := f.Follow(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer fo.Close()
	next(t, fo, store.Stored{})
	last := first
	for seq := range uint64(200) {
		last = publish(t, f, last, seq+2, nil)
	}
	have := first
	for have.Version() != last.Version() {
		s := have.Snapshot
		var m *store.Manifest
		for _, u := range next(t, fo, have) {
			s, m = s.With(u.Delta), u.Manifest
		}
		have = store.Stored{Manifest: m, Snapshot: s}
		if have.Snapshot.Root() != store.RootOf(m) {
			t.Fatalf("the links do not lead to %s", have.Version())
		}
		f.Hint(last.Version(), 201) // as the leader does every second
	}
}

// The server restarts between all steps.
func TestServerRestarts(t *testing.T) {
	b := newBus(t)
	f, _ := open(t, b)
	reader, _ := open(t, b)
	fo, err := reader.Follow(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer fo.Close()
	nothing := func() {}
	first := publish(t, f, store.Stored{}, 1, nil)
	b.Restart(t, nothing)
	if v := store.VersionOf(next(t, fo, store.Stored{})[0].Manifest.GetVersion()); v != first.Version() {
		t.Fatalf("next returned %s", v)
	}
	b.Restart(t, nothing)
	last := first
	for seq := range uint64(5) {
		was := f.Generation()
		b.Restart(t, nothing)
		v, u := version(last, seq+2, make([]byte, seq*200<<10))
		if _, err := f.Publish(t.Context(), u, seq+1, was); !errors.Is(err, store.ErrReconnected) {
			t.Fatalf("publish of the generation before: %v, want ErrReconnected", err)
		}
		if _, err := f.Publish(t.Context(), u, seq+1, f.Generation()); err != nil {
			t.Fatal(err)
		}
		b.Restart(t, nothing)
		wantNext(t, fo, last, v)
		last = v
	}
	b.Restart(t, nothing)
	got, err := reader.Fetch(t.Context(), last.Version())
	if err != nil || got.Snapshot.Root() != last.Snapshot.Root() {
		t.Fatalf("fetch: %s, %v", got.Version(), err)
	}
}

// A reader that waits for a stopped server continues when the server is back.
func TestRestartWhileNextWaits(t *testing.T) {
	b := newBus(t)
	f, _ := open(t, b)
	first := publish(t, f, store.Stored{}, 1, nil)
	fo, err := f.Follow(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer fo.Close()
	next(t, fo, store.Stored{})
	_, u := version(first, 2, nil)
	done := make(chan error, 1)
	go func() {
		for {
			links, err := fo.Next(t.Context(), first.Version(), first.Snapshot.Root())
			if err == nil && len(links) != 1 {
				err = fmt.Errorf("%d links", len(links))
			}
			if err == nil || t.Context().Err() != nil {
				done <- err
				return
			}
		}
	}()
	b.Restart(t, func() {})
	if _, err := f.Publish(t.Context(), u, 1, f.Generation()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestClosedConnection(t *testing.T) {
	b := newBus(t)
	f, nc := open(t, b)
	v := publish(t, f, store.Stored{}, 1, nil)
	fo, err := f.Follow(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	next(t, fo, store.Stored{})
	nc.Close()
	if _, err := fo.Next(t.Context(), v.Version(), v.Snapshot.Root()); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("next: %v, want ErrConnectionClosed", err)
	}
	if err := fo.Close(); err != nil {
		t.Error(err)
	}
	if _, err := f.Head(t.Context()); err == nil {
		t.Error("head over a closed connection")
	}
	// No answer is an error, and never "not found".
	if _, err := f.Fetch(t.Context(), v.Version()); err == nil || errors.Is(err, store.ErrNotFound) {
		t.Errorf("fetch over a closed connection: %v", err)
	}
}
