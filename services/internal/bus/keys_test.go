package bus

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"meshlog.dev/proto/ident"
)

// KEY-3: one of the holder and its twins answers each request for a key, no watcher of
// another shard does, and a request that no watcher hears ends at once.
func TestKeys(t *testing.T) {
	s := startServer(t, t.TempDir())
	shard, other := ident.Shard{Source: "kubernetes", Instance: "eu"}, ident.Shard{Source: "kubernetes", Instance: "us"}
	frontend := NewFleet(connect(t, s), "mesh", quiet)
	begun := time.Now()
	if _, err := frontend.RequestKey(t.Context(), shard, nil); !errors.Is(err, ErrNoKeeper) || time.Since(begun) > keyWait/2 {
		t.Errorf("without a watcher: %v after %s", err, time.Since(begun))
	}
	var answers, others atomic.Int32
	watch := func(shard ident.Shard, domain string, n *atomic.Int32) {
		conn := connect(t, s)
		run(t, func(ctx context.Context) error {
			return NewFleet(conn, domain, quiet).ServeKeys(ctx, shard, KeyAnswers{Answer: func(_ context.Context, request []byte) []byte {
				n.Add(1)
				return append([]byte("to "), request...)
			}})
		})
	}
	watch(shard, "mesh", &answers)
	watch(shard, "mesh", &answers)
	watch(other, "mesh", &others)
	watch(shard, "another", &others)
	const requests = 100
	for n := 0; n < requests; {
		got, err := frontend.RequestKey(t.Context(), shard, []byte("x"))
		if errors.Is(err, ErrNoKeeper) {
			continue // the watchers do not listen yet
		}
		if err != nil || string(got) != "to x" {
			t.Fatalf("answer %q, %v", got, err)
		}
		n++
	}
	if answers.Load() != requests || others.Load() != 0 {
		t.Errorf("%d requests: the watchers of the shard answered %d times, others %d times", requests, answers.Load(), others.Load())
	}
}

// A watcher answers inboxes only (BUS-2).
func TestKeysAnswerOnlyInboxes(t *testing.T) {
	s := startServer(t, t.TempDir())
	shard := ident.Shard{Source: "file", Instance: "default"}
	watcher, attacker := NewFleet(connect(t, s), "mesh", quiet), connect(t, s)
	run(t, func(ctx context.Context) error {
		return watcher.ServeKeys(ctx, shard, KeyAnswers{Answer: func(_ context.Context, request []byte) []byte {
			if string(request) == "forged" {
				t.Error("a request that wants its answer on a subject of the audit is answered")
			}
			return request
		}})
	})
	frontend := NewFleet(attacker, "mesh", quiet)
	for {
		if _, err := frontend.RequestKey(t.Context(), shard, []byte("x")); err == nil {
			break
		}
	}
	if err := attacker.PublishRequest("meshlog.key.mesh.file.default", "meshlog.audit.mesh.frontend", []byte("forged")); err != nil {
		t.Fatal(err)
	}
	if _, err := frontend.RequestKey(t.Context(), shard, []byte("x")); err != nil {
		t.Error(err)
	}
	if n := watcher.unanswerable.Load(); n != 1 {
		t.Errorf("%d requests are counted as refused, want 1", n)
	}
	if p := Watcher(ident.Shard{Source: CASource, Instance: "default"}).Permissions("mesh"); strings.Contains(strings.Join(p.Subscribe, " "), "meshlog.key.") {
		t.Errorf("the ca may be asked for keys: %v", p.Subscribe)
	}
}

// KEY-3: requests whose keys cannot be read now, and a frontend that sends too many, delay
// no other frontend; what is beyond the bounds is told at once that the watcher is busy.
func TestKeysTakeTurns(t *testing.T) {
	s := startServer(t, t.TempDir())
	shard := ident.Shard{Source: "kubernetes", Instance: "eu"}
	watcher := NewFleet(connect(t, s), "mesh", quiet)
	hung, let := make(chan struct{}, keysAtOnce), make(chan struct{})
	var running atomic.Int32
	run(t, func(ctx context.Context) error {
		return watcher.ServeKeys(ctx, shard, KeyAnswers{
			Answer: func(ctx context.Context, request []byte) []byte {
				if string(request) != "hangs" {
					return []byte("key")
				}
				running.Add(1)
				defer running.Add(-1)
				hung <- struct{}{}
				select {
				case <-let:
				case <-ctx.Done():
				}
				return []byte("late key")
			},
			Busy: func([]byte) []byte { return []byte("busy") },
		})
	})
	greedy, other := NewFleet(connect(t, s), "mesh", quiet), NewFleet(connect(t, s), "mesh", quiet)
	for {
		if _, err := other.RequestKey(t.Context(), shard, []byte("x")); !errors.Is(err, ErrNoKeeper) {
			break
		}
	}
	answers := make(chan string)
	const beyond = 5
	for range keysOfOne + keysWaitingOfOne + beyond {
		go func() {
			b, err := greedy.RequestKey(t.Context(), shard, []byte("hangs"))
			if err != nil {
				b = []byte(err.Error())
			}
			answers <- string(b)
		}()
	}
	for range beyond {
		if got := <-answers; got != "busy" {
			t.Errorf("a request beyond the bounds gets %q", got)
		}
	}
	for range keysOfOne {
		<-hung
	}
	if got, err := other.RequestKey(t.Context(), shard, []byte("x")); err != nil || string(got) != "key" {
		t.Errorf("while all requests of another frontend hang: %q, %v", got, err)
	}
	if n := running.Load(); n != keysOfOne {
		t.Errorf("%d requests of one frontend are answered at a time, want %d", n, keysOfOne)
	}
	close(let)
	for range keysOfOne + keysWaitingOfOne {
		if got := <-answers; got != "late key" && got != "busy" { // busy: it waited too long on this machine
			t.Errorf("a request that had to wait gets %q", got)
		}
	}
}
