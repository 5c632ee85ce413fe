package frontend

import (
	"runtime/debug"
	"sync"
)

// frugalPercent is how much garbage, in percent of what lives, Go's collector leaves
// while large requests are received.
const frugalPercent = 10

// collector is Go's collector, which a process has one of, with the budgets for which
// it is frugal.
var collector struct {
	mu      sync.Mutex
	budgets int
	percent int // as it was before
}

// frugal makes the collector leave little garbage, until it is called with false: it
// lets garbage grow to the size of what lives, so requests that live for long would
// take twice their size.
func frugal(on bool) {
	c := &collector
	c.mu.Lock()
	defer c.mu.Unlock()
	if on {
		if c.budgets++; c.budgets == 1 {
			c.percent = debug.SetGCPercent(frugalPercent)
		}
	} else if c.budgets--; c.budgets == 0 {
		debug.SetGCPercent(c.percent)
	}
}
