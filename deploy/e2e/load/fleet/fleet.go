package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Config says what a fleet is made of.
type Config struct {
	Target string // address of the server, without TLS
	Mode   Mode
	Nodes  [][]byte // the node of each proxy, encoded
	Names  Names    // what all of them ask for
}

// Fleet is a number of connected proxies. Its methods belong to one goroutine.
type Fleet struct {
	target  string
	mode    Mode
	size    int
	phrases [types]phrase

	cancel context.CancelCauseFunc
	ended  <-chan struct{} // a proxy failed, or Close was called
	cause  func() error
	wg     sync.WaitGroup

	wave       atomic.Pointer[Wave] // what is waited for
	sent       atomic.Int64
	unexpected atomic.Int64
	refused    atomic.Int64
}

// Connect connects all proxies at once. The wave that it returns ends when the
// last of them has acknowledged all four types. Close ends the fleet, also
// where ctx has ended.
func Connect(ctx context.Context, c Config) (*Fleet, *Wave) {
	ctx, cancel := context.WithCancelCause(ctx)
	f := &Fleet{
		target: c.Target, mode: c.Mode, size: len(c.Nodes),
		cancel: cancel, ended: ctx.Done(), cause: func() error { return context.Cause(ctx) },
	}
	names := [types][]string{EDS: c.Names.Endpoints, RDS: c.Names.Routes}
	for _, t := range Types() {
		f.phrases[t] = phraseOf(c.Mode, t, names[t])
	}
	w := f.Expect(RDS)
	for i, node := range c.Nodes {
		p := &proxy{index: i, fleet: f, node: node}
		f.wg.Go(func() {
			if err := p.run(ctx); err != nil {
				cancel(fmt.Errorf("proxy %d of %d: %w", p.index, f.size, err))
			}
		})
	}
	return f, w
}

// errClosed is how proxies of a closed fleet end.
var errClosed = errors.New("the fleet is closed")

// Close disconnects all proxies and waits for them.
func (f *Fleet) Close() {
	f.cancel(errClosed)
	f.wg.Wait()
}

// Bytes is what all proxies were sent so far.
func (f *Fleet) Bytes() int64 { return f.sent.Load() }

// Unexpected is how many responses came after the first sync while no proxy
// was to get one.
func (f *Fleet) Unexpected() int64 { return f.unexpected.Load() }

// Refused is how many streams a server turned away before it had sent anything.
// Such a proxy comes again a moment later.
func (f *Fleet) Refused() int64 { return f.refused.Load() }

// Wave is one response of a type that every proxy is to get.
type Wave struct {
	fleet *Fleet
	typ   Type
	at    []time.Time // by proxy, when its ACK was handed to the transport
	left  atomic.Int64
	done  chan struct{}
	body  []byte // as the first proxy got it
}

// Expect begins a wave; the one before must have ended.
func (f *Fleet) Expect(t Type) *Wave {
	w := &Wave{fleet: f, typ: t, at: make([]time.Time, f.size), done: make(chan struct{})}
	w.left.Store(int64(f.size))
	f.wave.Store(w)
	return w
}

// received notes a response at a proxy, which calls it one at a time.
func (f *Fleet) received(proxy int, t Type, r *response, at time.Time) {
	w := f.wave.Load()
	if w.typ != t || !w.at[proxy].IsZero() {
		f.unexpected.Add(1)
		return
	}
	w.at[proxy] = at
	if r.body != nil {
		w.body = r.body
	}
	if w.left.Add(-1) == 0 {
		close(w.done)
	}
}

// Wait waits until every proxy has acknowledged its response.
func (w *Wave) Wait(ctx context.Context) error {
	select {
	case <-w.done:
		return nil
	case <-w.fleet.ended:
		return w.fleet.cause()
	case <-ctx.Done():
		return fmt.Errorf("%s: %d of %d proxies wait: %w", w.typ, w.left.Load(), w.fleet.size, context.Cause(ctx))
	}
}

// Took is how long after a moment each proxy had acknowledged its response.
// The wave must have ended.
func (w *Wave) Took(start time.Time) []time.Duration {
	took := make([]time.Duration, len(w.at))
	for i, at := range w.at {
		took[i] = at.Sub(start)
	}
	return took
}

// Resources is what the first proxy was sent, encoded as fields of a response.
// It is an error if the token is not in there: then it was sent something
// else. The wave must have ended, and not be that of the first sync.
func (w *Wave) Resources(token []byte) ([]byte, error) {
	if !bytes.Contains(w.body, token) {
		return nil, fmt.Errorf("%d bytes of %s were sent, without %q", len(w.body), w.typ, token)
	}
	return resources(w.body)
}
