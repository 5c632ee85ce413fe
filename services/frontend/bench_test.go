package frontend_test

import (
	"fmt"
	"testing"

	"meshlog.dev/proto/ident"
)

// BenchmarkStreams measures the cost of an idle stream, and the cost of a change of
// one service's endpoints for each stream that watches it, both for a frontend and
// for gRPC alone.
func BenchmarkStreams(b *testing.B) {
	for _, c := range []struct{ streams, services int }{{500, 1000}, {2000, 100}, {2000, 1000}} {
		for _, floor := range []bool{true, false} {
			b.Run(fmt.Sprintf("streams=%d/services=%d/floor=%t", c.streams, c.services, floor), func(b *testing.B) {
				benchmarkStreams(b, c.streams, childTask{Services: c.services, Floor: floor})
			})
		}
	}
}

func benchmarkStreams(b *testing.B, streams int, task childTask) {
	c := startChild(b, task)
	before := c.do("settle")
	var names []string
	for i := range task.Services {
		names = append(names, fmt.Sprint("c", i))
	}
	clients := make([]*envoy, streams)
	for i := range clients {
		e := c.connect(node(fmt.Sprint("web-", i), "web"))
		e.ask(ident.CDS)
		e.ack(e.receive())
		e.ask(ident.EDS, names...)
		e.ack(e.receive())
		e.ask(ident.LDS)
		e.ack(e.receive())
		e.ask(ident.RDS, "routes")
		e.ack(e.receive())
		clients[i] = e
	}
	after := c.do("settle")
	n := float64(streams)
	cpu := c.do("cpu").CPU
	for b.Loop() {
		c.do("change")
		for _, e := range clients {
			e.ack(e.receive())
		}
	}
	b.ReportMetric(float64(c.do("cpu").CPU-cpu)/float64(b.N)/n/1e3, "µs-cpu/stream")
	b.ReportMetric((float64(after.RSS)-float64(before.RSS))/n, "rss-B/stream")
	b.ReportMetric((float64(after.Heap)-float64(before.Heap))/n, "heap-B/stream")
	b.ReportMetric((float64(after.Stack)-float64(before.Stack))/n, "stack-B/stream")
	b.ReportMetric(float64(after.Goroutines-before.Goroutines)/n, "goroutines/stream")
}
