// Package watch sends the newest version to receivers. A slow receiver delays
// neither the store nor other receivers.
package watch

import (
	"context"
	"sync"

	"meshlog.dev/proto/ident"
)

// Hub holds the receivers of one store. The zero Hub is ready; it is safe for
// concurrent use.
type Hub struct {
	mu        sync.Mutex
	latest    ident.Position
	receivers map[chan ident.Position]struct{}
}

// Send makes v the newest version. It never blocks: it replaces a version that a
// receiver has not taken.
func (h *Hub) Send(v ident.Position) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.latest = v
	for ch := range h.receivers {
		replace(ch, v)
	}
}

// Watch returns a channel that gets the newest version, if there is one, and then
// newer ones. Watch closes it when ctx is done.
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

// replace needs the lock of the Hub, so that no other call fills ch in between.
func replace(ch chan ident.Position, v ident.Position) {
	select {
	case <-ch:
	default:
	}
	ch <- v
}
