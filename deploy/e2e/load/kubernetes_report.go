package main

import (
	"fmt"
	"io"
	"time"
)

// legs are the stages of a change, in order, followed by sums.
var legs = []struct {
	name string
	took func(moments) []time.Duration
}{
	{"written -> observed by the watcher", leg(func(m moments) time.Duration { return m.Observed.Sub(m.Written) })},
	{"  written -> the API server has answered", leg(func(m moments) time.Duration { return m.Answered.Sub(m.Written) })},
	{"observed -> on the log, synced", leg(func(m moments) time.Duration { return m.Logged.Sub(m.Observed) })},
	{"on the log -> read by the builder", leg(func(m moments) time.Duration { return m.Read.Sub(m.Logged) })},
	{"read -> holdoff is over", leg(func(m moments) time.Duration { return m.Due.Sub(m.Read) })},
	{"holdoff is over -> built", leg(func(m moments) time.Duration { return m.Built.Sub(m.Due) })},
	{"built -> first byte to Envoy", leg(func(m moments) time.Duration { return m.sent.Sub(m.Built) })},
	{"  built -> published, synced", leg(func(m moments) time.Duration { return m.Published.Sub(m.Built) })},
	{"first byte -> Envoy's ACK", leg(func(m moments) time.Duration { return m.envoy.Sub(m.sent) })},
	{"written -> Envoy's ACK", leg(func(m moments) time.Duration { return m.envoy.Sub(m.Written) })},
	{"written -> ACK, over all proxies", func(m moments) []time.Duration { return m.acks }},
}

func leg(took func(moments) time.Duration) func(moments) []time.Duration {
	return func(m moments) []time.Duration { return []time.Duration{took(m)} }
}

func (r *kubernetesResults) print(w io.Writer) {
	s := r.plan.size
	fmt.Fprintf(w, "\nKubernetes: %d services x %d endpoints of %d pods, %d with VirtualService and DestinationRule: %d objects, written in %s (%.0f a second)\n",
		s.Services, s.Endpoints, s.Pods, min(s.Rules, s.Services), r.objects, seconds(r.cold.filled), float64(r.objects)/r.cold.filled.Seconds())
	c := r.cold
	fmt.Fprint(w, "\nCold start: time since the watcher's process was started\n\n")
	for _, row := range []struct {
		what string
		at   time.Duration
		more string
	}{
		{"the watcher's session begins", c.begun, ""},
		{"the first object is on the log", c.first, ""},
		{"the last object is on the log", c.logged, fmt.Sprintf("%d events, %.0f a second", c.records, float64(c.records)/(c.logged-c.first).Seconds())},
		{"the first version is published", c.version, ""},
		{"the frontend serves it", c.served, ""},
	} {
		fmt.Fprintf(w, "  %-60s %9s  %s\n", row.what, seconds(row.at), row.more)
	}
	fmt.Fprintf(w, "  %-60s %9s\n", fmt.Sprintf("then: %d proxies connect, the last one's last ACK", r.plan.streams), seconds(c.proxies))
	fmt.Fprintf(w, "\n  %-20s %14s %14s\n", "memory", "peak, cold", "settled")
	for _, h := range r.memory {
		fmt.Fprintf(w, "  %-20s %14s %14s\n", h.name, bytes(h.peak), bytes(h.settled))
	}
	fmt.Fprintf(w, "\nOne endpoint of a slice changes, %d times, with an Envoy and %d proxies\n\n  %-44s %10s %10s\n", len(r.changes), r.plan.streams, "", "p50", "p99")
	for _, l := range legs {
		var all []time.Duration
		for _, m := range r.changes {
			all = append(all, l.took(m)...)
		}
		all = sorted(all)
		fmt.Fprintf(w, "  %-44s %10s %10s\n", l.name, ms(percentile(all, 50)), ms(percentile(all, 99)))
	}
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
