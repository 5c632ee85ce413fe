package frontend

import (
	"context"
	"errors"
	"sync"
	"time"

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
type heads struct {
	ask func(context.Context) (store.Head, error) // nil: nobody can be asked

	mu      sync.Mutex // held while asking
	version store.Version
	err     error
	at      time.Time
}

var errNobody = errors.New("there is no version chain to be asked")

// head is the chain's head now, or a little before.
func (h *heads) head(ctx context.Context) (store.Version, error) {
	if h.ask == nil {
		return store.Version{}, errNobody
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
		return store.Version{}, err // whoever asked went away; that says nothing
	}
	h.version, h.err, h.at = head.Version(), err, asked
	return h.version, h.err
}
