// Package watch tells receivers of the newest version. No receiver can hold up
// the store, or another receiver.
package watch

import (
	"context"
	"sync"

	"meshlog.dev/proto/ident"
)

// Hub knows the receivers of one store. The zero Hub is ready; it is safe for
// concurrent use.
type Hub struct {
	mu        sync.Mutex
	latest    ident.Position
	receivers map[chan ident.Position]struct{}
}

// Send makes v the newest version. It never blocks: a receiver that has not
// taken the last one gets v in its place.
func (h *Hub) Send(v ident.Position) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.latest = v
	for ch := range h.receivers {
		replace(ch, v)
	}
}

// Watch returns a channel that gets the newest version, if there is one, and
// each newer one. It is closed when ctx is done.
func (h *Hub) Watch(ctx context.Context) <-chan ident.Position {
	h.mu.Lock()
	defer h.mu.Unlock()
	ch := make(chan ident.Position, 1)
	if h.receivers == nil {
		h.receivers = make(map[chan ident.Position]struct{})
	}
	h.receivers[ch] = struct{}{}
	if !h.latest.IsZero() {
		replace(ch, h.latest)
	}
	context.AfterFunc(ctx, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.receivers, ch)
		close(ch)
	})
	return ch
}

// replace is called with the lock held, so nobody else fills ch in between.
func replace(ch chan ident.Position, v ident.Position) {
	select {
	case <-ch:
	default:
	}
	ch <- v
}
