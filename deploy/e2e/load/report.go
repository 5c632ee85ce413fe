package main

import (
	"fmt"
	"io"
	"slices"
	"time"
)

func (r *results) print(w io.Writer) {
	slices.SortStableFunc(r.cases, func(a, b *result) int {
		if a.streams != b.streams {
			return a.streams - b.streams
		}
		return a.classes - b.classes
	})
	fmt.Fprintf(w, "first sync %d bytes; names %d %d\n", r.lesson.Size(), len(r.lesson.Names.Endpoints), len(r.lesson.Names.Routes))
	for t, a := range r.lesson.Answers {
		fmt.Fprintln(w, t, len(a))
	}
	for _, c := range r.cases {
		fmt.Fprintf(w, "%d streams %d classes: first p50 %v last %v cpu %v own %v bytes %d\n", c.streams, c.classes, percentile(c.first, 50), last(c.first), c.firstUsage.server, c.firstUsage.own, c.firstUsage.bytes)
		for _, ch := range []changed{c.endpoint, c.route} {
			var hold time.Duration
			if c.timings != nil {
				t, _ := ch.rounds[0].timing(c.timings)
				hold = t.Due.Sub(t.Read)
			}
			fmt.Fprintf(w, "   change %d bytes: p50 %v p99 %v  last p50 %v max %v  hold %v cpu %v own %v\n", len(ch.resources), percentile(ch.all(), 50), percentile(ch.all(), 99), percentile(ch.lasts(), 50), last(ch.lasts()), hold, ch.usage.server, ch.usage.own)
		}
		fmt.Fprintf(w, "   memory idle %d settled %d peak %d  a stream %d; unexpected %d\n", c.idle.resident, c.settled.resident, c.settled.peak, (c.settled.resident-c.idle.resident)/int64(c.streams), c.unexpected)
	}
}
