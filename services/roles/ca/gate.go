package ca

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
)

// Times of the reports of frontends, which come every 10 s and on change.
const (
	// allReport is the time in which every running frontend reports.
	allReport = 12 * time.Second
	// forgetAfter is how long a frontend that is silent holds a root back: it may live,
	// with proxies, and be cut off from the bus.
	forgetAfter = time.Hour
)

// gate knows which roots the live proxies have applied, from the reports of frontends: a
// root must not sign before all of them trust it (CA-10).
type gate struct {
	mu        sync.Mutex
	since     time.Time // reports since then were received
	last      time.Time // of the last report
	frontends map[string]heard
	changed   chan struct{} // has a value after a report
}

type heard struct {
	report *reportv1.FrontendReport
	at     time.Time
}

func newGate(now time.Time) *gate {
	return &gate{since: now, last: now, frontends: map[string]heard{}, changed: make(chan struct{}, 1)}
}

// hear takes the report of a frontend. last: its process ends.
func (g *gate) hear(name string, r *reportv1.FrontendReport, last bool, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now.Sub(g.last) > allReport {
		g.since = now // the bus was away
	}
	g.last = now
	if last {
		delete(g.frontends, name)
	} else {
		g.frontends[name] = heard{r, now}
	}
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

// waiting returns why proxies may not trust a root yet, a sentence each; none: all live
// proxies have applied it.
func (g *gate) waiting(root [32]byte, now time.Time) (why []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	add := func(format string, args ...any) { why = append(why, fmt.Sprintf(format, args...)) }
	if now.Sub(g.last) > allReport {
		add("no frontend has reported for %s: the bus is away, or no frontend runs", now.Sub(g.last).Round(time.Second))
		return why
	}
	if now.Sub(g.since) < allReport {
		add("this replica has listened to the reports of frontends for %s only; all of them report within %s", now.Sub(g.since).Round(time.Second), allReport)
	}
	if len(g.frontends) == 0 {
		add("no frontend reports, so what proxies trust is not known")
	}
	for _, name := range slices.Sorted(maps.Keys(g.frontends)) {
		h := g.frontends[name]
		switch silent := now.Sub(h.at); {
		case silent > forgetAfter:
			delete(g.frontends, name)
			continue
		case silent > allReport:
			add("frontend %s is silent for %s: what its proxies trust is not known; it counts until %s", name, silent.Round(time.Second), h.at.Add(forgetAfter).UTC().Format(time.RFC3339))
			continue
		}
		if !hasSum(h.report.GetRoots(), root) {
			add("frontend %s does not serve the root yet", name)
			continue
		}
		streams, without := uint32(0), uint32(0)
		for _, a := range h.report.GetRootsApplied() {
			if streams += a.GetStreams(); !hasSum(a.GetRoots(), root) {
				without += a.GetStreams()
			}
		}
		if without > 0 {
			add("%d of %d proxies at frontend %s have not applied the root", without, streams, name)
		}
	}
	return why
}

func hasSum(all [][]byte, sum [32]byte) bool {
	return slices.ContainsFunc(all, func(b []byte) bool { return bytes.Equal(b, sum[:]) })
}
