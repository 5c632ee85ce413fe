package builder

import (
	"time"

	"meshlog.dev/proto/ident"
)

// Holdoff configures how long a change waits for further ones.
type Holdoff struct {
	// Endpoints is the quiet period while nothing but endpoints is pending.
	Endpoints time.Duration
	// Quiet is the quiet period otherwise: a version is built once no change
	// came for that long. It never falls below the time a build takes.
	Quiet time.Duration
	// Max is how long the first pending change waits at most.
	Max time.Duration
	// EndpointsMax is how long an endpoint waits at most, whatever other changes
	// come.
	EndpointsMax time.Duration
}

// DefaultHoldoff waits 2 ms for endpoints and 20 ms for other changes, at most
// 500 ms, and at most 50 ms while endpoints are pending.
func DefaultHoldoff() Holdoff {
	return Holdoff{
		Endpoints:    2 * time.Millisecond,
		Quiet:        20 * time.Millisecond,
		Max:          500 * time.Millisecond,
		EndpointsMax: 50 * time.Millisecond,
	}
}

// due returns when the pending changes are built. first and last are the times of
// the first and the newest of them; only: all of them are endpoints; some: one of
// them is; build is the duration of the last build.
func (h Holdoff) due(first, last time.Time, only, some bool, build time.Duration) time.Time {
	quiet, most := max(h.Quiet, build), h.Max
	if only {
		quiet = max(h.Endpoints, build)
	}
	if some {
		most = min(most, h.EndpointsMax)
	}
	quietEnd, end := last.Add(quiet), first.Add(most)
	if quietEnd.Before(end) {
		return quietEnd
	}
	return end
}

// pace decides when the next commit is due.
type pace struct {
	first, last time.Time      // when the first, and the newest, pending change came
	pending     int            // how many there were then
	building    time.Duration  // duration of the last build
	tried       ident.Position // of the last commit
	triedAt     time.Time      // zero: try again at once
}

// again allows another commit at the same position at once.
func (p *pace) again() { p.triedAt = time.Time{} }

// dueIn returns how long until the next commit. A commit that did not publish (it
// may have appended a segment or a hold) is not tried again at the same position
// before a second has passed.
func (p *pace) dueIn(m *Machine, h Holdoff) time.Duration {
	if !p.triedAt.IsZero() && p.tried == m.Position() {
		return max(0, time.Until(p.triedAt.Add(tickEvery)))
	}
	n, only, some := m.Pending()
	if n == 0 {
		p.pending = 0
	}
	switch {
	case m.Urgent():
		return 0
	case n == 0:
		return tickEvery
	}
	now := time.Now()
	if p.pending == 0 {
		p.first = now
	}
	if n != p.pending {
		p.last, p.pending = now, n
	}
	return max(0, h.due(p.first, p.last, only, some, p.building).Sub(now))
}
