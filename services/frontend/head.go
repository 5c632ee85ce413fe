package frontend

import (
	"context"
	"errors"
	"sync"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/stream"
	"meshlog.dev/store"
)

const (
	// headAge is how long a head that was read is reused.
	headAge = time.Second
	// headTimeout is the time after which the bus counts as away.
	headTimeout = time.Second
	// headRetry is the pause before the head is read again.
	headRetry = time.Second
)

// headQuery reads the head of the version chain, once for all streams that need
// it at the same time.
type headQuery struct {
	ask func(context.Context) (store.Head, error) // nil: there is no chain

	mu      sync.Mutex // held while asking
	version ident.Position
	err     error
	at      time.Time
}

var errNoChain = errors.New("there is no version chain")

// askHead asks for the head of the chain until there is an answer, if the
// client names unknown versions; mu is held.
func (c *conn) askHead() {
	if !c.state.WantsHead() || c.asking {
		return
	}
	c.asking = true
	ctx := c.grpc.Context()
	c.server.streams.Go(func() {
		for {
			v, err := c.server.head.head(ctx)
			c.headAnswered(v, err)
			if err == nil || !sleep(ctx, headRetry) {
				return
			}
		}
	})
}

func (c *conn) headAnswered(v ident.Position, err error) {
	c.withState(func(state *stream.Stream) {
		if err == nil {
			state.HeadIs(v)
		} else {
			state.HeadAway()
		}
	})
	c.changed()
}

// sleep waits for d and reports whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// head returns the chain's head, at most headAge old.
func (h *headQuery) head(ctx context.Context) (ident.Position, error) {
	if h.ask == nil {
		return ident.Position{}, errNoChain
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.at.IsZero() && time.Since(h.at) < headAge {
		return h.version, h.err
	}
	asked := time.Now()
	ctx, cancel := context.WithTimeout(ctx, headTimeout)
	defer cancel()
	head, err := h.ask(ctx)
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return ident.Position{}, err // the stream ended; the bus may be there
	}
	h.version, h.err, h.at = head.Version(), err, asked
	return h.version, h.err
}
