package mcpxds

import "time"

// Pings is how often gRPC pings.
const Pings = pings

// Hasten shortens the times that tests wait for.
func (w *Watcher) Hasten(answer, versions, doubt time.Duration) *Watcher {
	w.limits.answer, w.limits.versions, w.limits.doubt, w.limits.jitter = answer, versions, doubt, time.Millisecond
	return w
}
