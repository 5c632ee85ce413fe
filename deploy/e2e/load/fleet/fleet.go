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

// Config describes a fleet.
type Config struct {
	Target string // address of the server, without TLS
	Mode   Mode
	Nodes  [][]byte // the node of each proxy, encoded
	Names  Names    // names that all of them ask for
}

// Fleet is a number of connected proxies. One goroutine owns its methods.
type Fleet struct {
	target  string
	mode    Mode
	size    int
	phrases [types]phrase

	cancel context.CancelCauseFunc
	ended  <-chan struct{} // a proxy failed, or Close was called
	cause  func() error
	wg     sync.WaitGroup

	wave       atomic.Pointer[Wave] // the expected responses
	sent       atomic.Int64
	unexpected atomic.Int64
	refused    atomic.Int64
}

// Connect connects all proxies at once. The returned wave ends when the last of
// them has acknowledged all types. The caller closes the fleet, even if ctx
// has ended.
func Connect(ctx context.Context, c Config) (*Fleet, *Wave) {
	ctx, cancel := context.WithCancelCause(ctx)
	f := &Fleet{
		target: c.Target, mode: c.Mode, size: len(c.Nodes),
		cancel: cancel, ended: ctx.Done(), cause: func() error { return context.Cause(ctx) },
	}
	names := c.Names.byType()
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

// errClosed is the error with which proxies of a closed fleet end.
var errClosed = errors.New("the fleet is closed")

// Close disconnects all proxies and waits for them.
func (f *Fleet) Close() {
	f.cancel(errClosed)
	f.wg.Wait()
}

// Bytes returns how many bytes all proxies have received.
func (f *Fleet) Bytes() int64 { return f.sent.Load() }

// Unexpected returns how many responses came after the first sync outside of any
// wave.
func (f *Fleet) Unexpected() int64 { return f.unexpected.Load() }

// Refused returns how many streams a server ended before it sent a response. Such
// a proxy retries a moment later.
func (f *Fleet) Refused() int64 { return f.refused.Load() }

// Wave is one response of a type that every proxy is to get.
type Wave struct {
	fleet *Fleet
	typ   Type
	at    []time.Time // by proxy, when its ACK was handed to the transport
	left  atomic.Int64
	done  chan struct{}
	body  []byte // the response of the first proxy
}

// Expect begins a wave. The previous wave must have ended.
func (f *Fleet) Expect(t Type) *Wave {
	w := &Wave{fleet: f, typ: t, at: make([]time.Time, f.size), done: make(chan struct{})}
	w.left.Store(int64(f.size))
	f.wave.Store(w)
	return w
}

// received notes a response at a proxy. Each proxy calls it for one response at a
// time.
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

// Took returns how long after start each proxy had acknowledged its response. The
// wave must have ended.
func (w *Wave) Took(start time.Time) []time.Duration {
	took := make([]time.Duration, len(w.at))
	for i, at := range w.at {
		took[i] = at.Sub(start)
	}
	return took
}

// Resources returns the resources of the first proxy's response, encoded as
// fields of a response. It is an error if they do not contain the token: then the
// proxy got another response. The wave must have ended, and must not be the first
// sync.
func (w *Wave) Resources(token []byte) ([]byte, error) {
	if !bytes.Contains(w.body, token) {
		return nil, fmt.Errorf("%d bytes of %s were sent, without %q", len(w.body), w.typ, token)
	}
	return resources(w.body)
}
