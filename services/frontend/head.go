package frontend

import (
	"context"
	"errors"
	"sync"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

const (
	// headAge is how old an answer about the head may be.
	headAge = time.Second
	// headTimeout is after what time the bus counts as away.
	headTimeout = time.Second
	// headRetry is the pause before a bus that was away is asked again.
	headRetry = time.Second
)

// heads asks for the head of the version chain, once for all streams that want
// to know it at the same time.
type headQuery struct {
	ask func(context.Context) (store.Head, error) // nil: nobody can be asked

	mu      sync.Mutex // held while asking
	version ident.Position
	err     error
	at      time.Time
}

var errNobody = errors.New("there is no version chain to be asked")

// askHead asks for the head of the chain where the client names versions that
// are unknown here, until there is an answer; mu is held.
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
	c.mu.Lock()
	switch {
	case err == nil:
		c.head = &v
	case c.state != nil:
		c.state.HeadAway()
	}
	c.mu.Unlock()
	c.changed()
}

// reached tells the state that the head is served, if it is; mu is held.
func (c *conn) reached(now time.Time, served ident.Position) {
	if c.head != nil && !served.Less(*c.head) {
		c.state.HeadConfirmed(now)
	}
}

// sleep waits for d. It says whether ctx is still alive.
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

// head is the chain's head now, or a little before.
func (h *headQuery) head(ctx context.Context) (ident.Position, error) {
	if h.ask == nil {
		return ident.Position{}, errNobody
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
		return ident.Position{}, err // whoever asked went away; that says nothing
	}
	h.version, h.err, h.at = head.Version(), err, asked
	return h.version, h.err
}
