package builder

import "time"

// Holdoff says how long a change waits for others to come with it.
type Holdoff struct {
	// Endpoints is the quiet period while nothing but endpoints is pending.
	Endpoints time.Duration
	// Quiet is the quiet period otherwise: a version is built once nothing
	// came for that long. It never falls below the time a build takes.
	Quiet time.Duration
	// Max is how long the first pending change waits at most.
	Max time.Duration
	// EndpointsMax is how long an endpoint waits at most, whatever comes
	// with it.
	EndpointsMax time.Duration
}

// DefaultHoldoff waits 2 ms for endpoints and 20 ms for all else, 500 ms at
// most, and 50 ms where endpoints are pending.
func DefaultHoldoff() Holdoff {
	return Holdoff{
		Endpoints:    2 * time.Millisecond,
		Quiet:        20 * time.Millisecond,
		Max:          500 * time.Millisecond,
		EndpointsMax: 50 * time.Millisecond,
	}
}

// due is when what is pending is built. first and last are when the first and
// the newest pending change came; only says that nothing but endpoints is
// pending, some that an endpoint is; build is what the last build took.
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
