package rig

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/deploy/testkit/program"
)

// The streams of a mesh.
const (
	Events   = "MESHLOG_EVENTS"
	Versions = "MESHLOG_VERSIONS"
)

// Witness reads the records of a stream as they come, and remembers them. The bus
// has acknowledged every record that a client could read, so none may be lost or
// change.
type Witness struct {
	stream string
	nc     *nats.Conn
	js     jetstream.JetStream

	reading sync.Mutex // one reader at a time

	mu   sync.Mutex
	seen map[uint64][sha256.Size]byte // by sequence: a hash of subject, time, headers and data
	last uint64
}

// NewWitness connects to a bus with a key. It stays connected through any fault of
// the bus.
func NewWitness(url string, key nats.Option, stream string) (*Witness, error) {
	nc, err := nats.Connect(url, key, nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond),
		nats.PingInterval(time.Second), nats.MaxPingsOutstanding(2), nats.RetryOnFailedConnect(true),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", url, err)
	}
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(answer))
	if err != nil {
		nc.Close()
		return nil, err
	}
	return &Witness{stream: stream, nc: nc, js: js, seen: map[uint64][sha256.Size]byte{}}, nil
}

// Run reads until ctx ends, and closes the connection.
func (w *Witness) Run(ctx context.Context) {
	defer w.nc.Close()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		_ = w.read(ctx) // the bus may be down: the next read catches up
	}
}

// read reads the new records.
func (w *Witness) read(ctx context.Context) error {
	w.reading.Lock()
	defer w.reading.Unlock()
	s, err := w.open(ctx)
	if err != nil {
		return err
	}
	last := s.CachedInfo().State.LastSeq
	w.mu.Lock()
	next := max(w.last+1, s.CachedInfo().State.FirstSeq)
	w.mu.Unlock()
	for ; next <= last; next++ {
		sum, err := sumOf(ctx, s, next)
		if err != nil {
			return err
		}
		w.mu.Lock()
		w.seen[next], w.last = sum, next
		w.mu.Unlock()
	}
	return nil
}

// open asks for the stream. A request that is lost with its server never gets an
// answer.
func (w *Witness) open(ctx context.Context) (jetstream.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	s, err := w.js.Stream(ctx, w.stream)
	if err == nil {
		// Read from the stream's leader: another server may lag.
		s.CachedInfo().Config.AllowDirect = false
	}
	return s, err
}

func sumOf(ctx context.Context, s jetstream.Stream, seq uint64) (sum [sha256.Size]byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	m, err := s.GetMsg(ctx, seq)
	if err != nil {
		return sum, fmt.Errorf("record %d: %w", seq, err)
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%d\n%v\n", m.Subject, m.Time.UnixNano(), m.Header)
	h.Write(m.Data)
	return [sha256.Size]byte(h.Sum(nil)), nil
}

// Seen returns how many records were seen.
func (w *Witness) Seen() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.seen)
}

// Forget forgets all seen records, because the stream was replaced.
func (w *Witness) Forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.seen)
	w.last = 0
}

// Check reads the whole stream again. It is an error if a seen record is missing
// or has changed. Check repeats a request that is lost, as happens between
// servers that have just reconnected.
func (w *Witness) Check(ctx context.Context) error {
	if err := program.Until(ctx, w.stream+" to be read", w.read); err != nil {
		return err
	}
	s, err := w.open(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", w.stream, err)
	}
	w.mu.Lock()
	seen := make(map[uint64][sha256.Size]byte, len(w.seen))
	for seq, sum := range w.seen {
		seen[seq] = sum
	}
	w.mu.Unlock()
	var errs []error
	for seq, was := range seen {
		sum, err := sumOf(ctx, s, seq)
		for errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			sum, err = sumOf(ctx, s, seq)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: a seen record is lost: %w", w.stream, err))
		} else if sum != was {
			errs = append(errs, fmt.Errorf("%s: record %d has changed since it was seen", w.stream, seq))
		}
	}
	return errors.Join(errs...)
}
