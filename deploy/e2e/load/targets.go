package main

import (
	"fmt"
	"io"
	"time"
)

// maxPerStream is the frontend memory that a proxy may cost.
const maxPerStream = 64 << 10

// limit is a limit on a frontend's time, as a multiple of the floor.
type limit struct {
	name string
	took func(*result) time.Duration
	used func(*result) usage
	most float64
	// manyClasses is the limit with more than one class.
	manyClasses float64
}

// limits are the targets. An endpoint change counts everything, including commits
// to disk and the bus; a route change counts all but the holdoff.
var limits = []limit{
	{"first sync, the last proxy", func(c *result) time.Duration { return last(c.first) }, firstUsage, 1.5, 2},
	{"endpoint change, p99", func(c *result) time.Duration { return percentile(c.endpoint.all(), 99) }, endpointUsage, 2.5, 2.5},
	{"route change, p50", func(c *result) time.Duration { return percentile(c.route.but(c.holdoff), 50) }, routeUsage, 2, 2},
	{"route change, p99", func(c *result) time.Duration { return percentile(c.route.but(c.holdoff), 99) }, routeUsage, 2, 2},
}

func firstUsage(c *result) usage    { return c.firstUsage }
func endpointUsage(c *result) usage { return c.endpoint.usage }
func routeUsage(c *result) usage    { return c.route.usage }

// printTargets prints which targets are met. The target is the ratio of elapsed
// times. The ratio of processor times, of the server and of the proxies, shows
// whether a missed target is slow or was disturbed.
func (r *results) printTargets(w io.Writer) {
	const line = "  %-28s %12s %12s %11s %11s %8s %8s %9s  %s\n"
	fmt.Fprint(w, "\nTargets: a multiple of the floor in the same run; a route's holdoff is not counted\n\n")
	fmt.Fprintf(w, line, "", "", "", "meshlog", "floor", "CPU", "ratio", "at most", "")
	var floor *result // with as many proxies: it is the first case among them
	for _, c := range r.cases {
		if c.classes == 0 {
			floor = c
			continue
		}
		for _, l := range limits {
			most := l.most
			if c.classes > 1 {
				most = l.manyClasses
			}
			ratio := quotient(l.took(c), l.took(floor))
			fmt.Fprintf(w, line, l.name, fmt.Sprintf("%d proxies", c.streams), c.name(), ms(l.took(c)), ms(l.took(floor)),
				times(quotient(l.used(c).both(), l.used(floor).both())), times(ratio), fmt.Sprintf("%.1fx", most), verdict(ratio <= most))
		}
		if c.fewest == c {
			continue // state kept for all proxies cannot be separated from each proxy's own
		}
		fmt.Fprintf(w, line, "memory a proxy", fmt.Sprintf("%d proxies", c.streams), c.name(), bytes(c.perMoreProxy()), bytes(floor.perMoreProxy()),
			"", "", bytes(maxPerStream), verdict(c.perMoreProxy() <= maxPerStream))
	}
}

func quotient(a, b time.Duration) float64 { return float64(a) / float64(max(b, 1)) }

func times(ratio float64) string { return fmt.Sprintf("%.2fx", ratio) }

func verdict(ok bool) string {
	if ok {
		return "PASS"
	}
	return "MISS"
}
