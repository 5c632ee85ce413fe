package frontend

import (
	"sync"
	"time"
)

// limiter is a token bucket: so many a second, and as many at once.
type limiter struct {
	perSecond float64

	mu     sync.Mutex
	tokens float64
	last   time.Time
}

func newLimiter(perSecond int) *limiter {
	return &limiter{perSecond: float64(perSecond), tokens: float64(perSecond)}
}

// allow takes a token, if there is one.
func (l *limiter) allow(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.last.IsZero() {
		l.tokens = min(l.perSecond, l.tokens+l.perSecond*now.Sub(l.last).Seconds())
	}
	l.last = now
	if l.tokens < 1 {
		return false
	}
	l.tokens--
	return true
}
