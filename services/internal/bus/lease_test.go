package bus

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func leaseServer(t *testing.T) *Server {
	t.Helper()
	s := startServer(t, t.TempDir())
	if err := EnsureLeases(t.Context(), connect(t, s), 1); err != nil {
		t.Fatal(err)
	}
	return s
}

// candidate is a process that wants the lease.
type candidate struct {
	lease *Lease
	held  chan bool
	stop  func() // ends Run and waits for it
	nc    *nats.Conn
}

func newCandidate(t *testing.T, s *Server, name string, ttl time.Duration) *candidate {
	t.Helper()
	nc := connect(t, s)
	l, err := NewLease(nc, LeaseOptions{Domain: "a mesh", Holder: name, TTL: ttl, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	return &candidate{lease: l, held: make(chan bool, 8), nc: nc}
}

func (c *candidate) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := c.lease.Run(ctx, func(held bool) { c.held <- held }); !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	})
	c.stop = func() { cancel(); wg.Wait() }
	t.Cleanup(c.stop)
}

func (c *candidate) expect(t *testing.T, want bool) {
	t.Helper()
	select {
	case got := <-c.held:
		if got != want {
			t.Fatalf("held = %v, want %v", got, want)
		}
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}

// A standby takes the lease at once when its holder ends: the TTL is far longer than
// a test.
func TestLeaseReleased(t *testing.T) {
	s := leaseServer(t)
	a := newCandidate(t, s, "a", time.Hour)
	b := newCandidate(t, s, "b", time.Hour)
	a.start(t)
	a.expect(t, true)
	b.start(t)
	a.stop()
	a.expect(t, false)
	b.expect(t, true)
	if len(a.held) != 0 {
		t.Error("a reported another change")
	}
}

// A standby takes the lease of a dead holder after the TTL; a holder that is cut off
// stops leading by then.
func TestLeaseExpires(t *testing.T) {
	const ttl = time.Second // the shortest that the server accepts
	s := leaseServer(t)
	a := newCandidate(t, s, "a", ttl)
	b := newCandidate(t, s, "b", ttl)
	a.start(t)
	a.expect(t, true)
	b.start(t)
	cut := time.Now()
	a.nc.Close()
	a.expect(t, false)
	lost := time.Since(cut)
	b.expect(t, true)
	taken := time.Since(cut)
	t.Logf("a stopped leading after %v, b held the lease after %v", lost, taken)
	if lost > ttl+ttl/2 {
		t.Errorf("a led for %v after it was cut off", lost)
	}
}

func TestLeaseIsRenewed(t *testing.T) {
	const ttl = time.Second
	s := leaseServer(t)
	a := newCandidate(t, s, "a", ttl)
	renewals := make(chan *nats.Msg, 8)
	nc := connect(t, s)
	if _, err := nc.ChanSubscribe(a.lease.subject, renewals); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	a.start(t)
	a.expect(t, true)
	for range 5 { // 5/3 of the TTL
		if m := <-renewals; string(m.Data) != "a" {
			t.Fatalf("renewal by %q", m.Data)
		}
	}
	if len(a.held) != 0 {
		t.Error("a lost its lease")
	}
}

// A renewal whose answer was lost still belongs to its holder.
func TestLeaseAfterLostAnswer(t *testing.T) {
	a := newCandidate(t, leaseServer(t), "a", time.Hour)
	ctx := t.Context()
	first, err := a.lease.acquire(ctx, false)
	if err != nil {
		t.Fatal(err)
	}
	unheard, err := a.lease.put(ctx, first)
	if err != nil {
		t.Fatal(err)
	}
	got, err := a.lease.renew(ctx, first, time.Now().Add(time.Minute))
	if err != nil || got <= unheard {
		t.Errorf("renew after a lost answer: revision %d, %v; want one above %d", got, err, unheard)
	}
}

// A namesake or an operator that writes the key ends the lease.
func TestLeaseTakenAway(t *testing.T) {
	s := leaseServer(t)
	a := newCandidate(t, s, "a", time.Second)
	a.start(t)
	a.expect(t, true)
	js, err := jetstream.New(connect(t, s))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), a.lease.subject, []byte("a")); err != nil {
		t.Fatal(err)
	}
	a.expect(t, false)
}

// A holder that was killed and starts again leads at once, without waiting for the
// TTL; a process of its name that ran before does not take the lease back.
func TestLeaseInherited(t *testing.T) {
	s := leaseServer(t)
	killed := newCandidate(t, s, "a", time.Hour)
	if _, err := killed.lease.acquire(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	other := newCandidate(t, s, "b", time.Hour)
	if _, err := other.lease.acquire(t.Context(), true); !errors.As(err, new(errHeld)) {
		t.Errorf("another process takes the lease: %v", err)
	}
	back := newCandidate(t, s, "a", time.Hour)
	back.start(t)
	back.expect(t, true)
	if _, err := killed.lease.acquire(t.Context(), false); !errors.As(err, new(errHeld)) {
		t.Errorf("the earlier process takes the lease back: %v", err)
	}
}

// A holder that resigns leads until another process takes the lease.
func TestLeaseResign(t *testing.T) {
	s := leaseServer(t)
	a := newCandidate(t, s, "a", time.Hour)
	b := newCandidate(t, s, "b", time.Hour)
	a.start(t)
	a.expect(t, true)
	a.lease.Resign()
	b.start(t)
	b.expect(t, true)
	a.expect(t, false)
	b.stop()
	a.expect(t, true)
}
