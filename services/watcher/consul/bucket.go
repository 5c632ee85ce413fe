package consul

import (
	"context"
	"math/rand/v2"
	"time"
)

// Limits of a poll (CON-4): two answers at once, one each 500 ms, and one each 15 s once
// it has been at this limit for a minute.
const (
	burst     = 2
	each      = 500 * time.Millisecond
	eachSlow  = 15 * time.Second
	slowAfter = time.Minute
)

// bucket limits how often a poll asks. Its zero value is full. One goroutine uses it.
type bucket struct {
	tokens float64
	at     time.Time // when tokens was right; zero: it is full
	since  time.Time // since when it has not been full after a wait; zero: it is not at its limit
}

// take takes a token and returns how long to wait before the poll may ask.
func (b *bucket) take(now time.Time) time.Duration {
	per := each
	if !b.since.IsZero() && now.Sub(b.since) >= slowAfter {
		per = eachSlow
	}
	if b.at.IsZero() {
		b.tokens = burst
	} else {
		b.tokens = min(burst, b.tokens+float64(now.Sub(b.at))/float64(per))
	}
	if b.at = now; b.tokens == burst {
		b.since = time.Time{}
	}
	b.tokens--
	if b.tokens >= 0 {
		return 0
	}
	if b.since.IsZero() {
		b.since = now
	}
	return time.Duration(-b.tokens * float64(per))
}

// Backoff of polls and reads that fail (CON-7).
const minPause, maxPause = 250 * time.Millisecond, 30 * time.Second

// pause returns how long to wait after so many failures, with jitter.
func pause(failures int) time.Duration {
	d := maxPause
	if failures < 8 {
		d = min(minPause<<max(failures-1, 0), maxPause)
	}
	return d - d/4 + rand.N(d/2)
}

// sleep reports whether d passed before ctx was done.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
