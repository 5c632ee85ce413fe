package main

import (
	"fmt"
	"io"
	"time"
)

// maxPerStream is what a proxy may cost a frontend in memory.
const maxPerStream = 64 << 10

// limit is one on what a frontend takes, as a multiple of the floor.
type limit struct {
	name string
	took func(*result) time.Duration
	most float64
	// manyClasses is the limit with more than one class.
	manyClasses float64
}

// limits are the targets. The endpoint's counts everything, commits to disk and
// the bus included; the route's all but the holdoff.
var limits = []limit{
	{"first sync, the last proxy", func(c *result) time.Duration { return last(c.first) }, 1.5, 2},
	{"endpoint change, p99", func(c *result) time.Duration { return percentile(c.endpoint.all(), 99) }, 2.5, 2.5},
	{"route change, p50", func(c *result) time.Duration { return percentile(c.route.but(c.holdoff), 50) }, 2, 2},
	{"route change, p99", func(c *result) time.Duration { return percentile(c.route.but(c.holdoff), 99) }, 2, 2},
}

// printTargets says which targets are met.
func (r *results) printTargets(w io.Writer) {
	const line = "  %-30s %12s %12s %12s %12s %8s %10s  %s\n"
	fmt.Fprint(w, "\nTargets: a multiple of the floor in the same run; a route's holdoff is not counted\n\n")
	fmt.Fprintf(w, line, "", "", "", "meshlog", "floor", "ratio", "at most", "")
	var floor *result // of as many proxies: it stands first among them
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
			ours, base := l.took(c), l.took(floor)
			ratio := float64(ours) / float64(base)
			fmt.Fprintf(w, line, l.name, fmt.Sprintf("%d proxies", c.streams), c.name(), ms(ours), ms(base),
				fmt.Sprintf("%.2fx", ratio), fmt.Sprintf("%.1fx", most), verdict(ratio <= most))
		}
		fmt.Fprintf(w, line, "memory a proxy", fmt.Sprintf("%d proxies", c.streams), c.name(), bytes(c.perMoreProxy()), bytes(floor.perMoreProxy()),
			"", bytes(maxPerStream), verdict(c.perMoreProxy() <= maxPerStream))
	}
}

func verdict(ok bool) string {
	if ok {
		return "PASS"
	}
	return "MISS"
}
