package main

import (
	"fmt"
	"io"
	"slices"
)

// mostLater is how many times longer a change may take to reach proxies that are
// served during a storm.
const mostLater = 2.0

// printStorms writes the report.
func printStorms(w io.Writer, p stormPlan, all []*storm) {
	fmt.Fprintf(w, "\nStorms: %d services x %d endpoints; %d proxies reconnect, %d stay and see an endpoint change; sotw\n",
		p.size.Services, p.size.Endpoints, p.streams, p.served)
	fmt.Fprintf(w, "  The frontend that is measured serves the proxies that stay. Proxies that reconnect have nice %d.\n\n", behind)
	rows := []struct {
		name string
		of   func(*storm) string
	}{
		{"Proxies that returned", func(s *storm) string { return fmt.Sprint(len(s.back)) }},
		{"  half are back", func(s *storm) string { return ms(percentile(s.back, 50)) }},
		{"  all are back: the last ACK", func(s *storm) string { return ms(last(s.back)) }},
		{"  sent to all of them", func(s *storm) string { return bytes(s.counts.Bytes) }},
		{"  streams refused and retried", func(s *storm) string { return fmt.Sprint(s.counts.Refused) }},
		{"  connections refused", func(s *storm) string { return fmt.Sprint(s.counts.Failed) }},
		{"Frontend: processor time", func(s *storm) string { return ms(s.usage.server) }},
		{"  memory before", func(s *storm) string { return bytes(s.idle.resident) }},
		{"  memory peak", func(s *storm) string { return bytes(s.peak) }},
		{"A change to proxies that stay, quiet, p50", func(s *storm) string { return ms(percentile(s.quiet, 50)) }},
		{"  p99", func(s *storm) string { return ms(percentile(s.quiet, 99)) }},
		{"  in the storm, p50", func(s *storm) string { return ms(percentile(s.meanwhile, 50)) }},
		{"  p99", func(s *storm) string { return ms(percentile(s.meanwhile, 99)) }},
		{"  changes in the storm", func(s *storm) string { return fmt.Sprint(s.changes) }},
		{fmt.Sprintf("  p50 later by, at most %.1fx", mostLater), func(s *storm) string {
			ratio := quotient(percentile(s.meanwhile, 50), percentile(s.quiet, 50))
			return times(ratio) + " " + verdict(ratio <= mostLater)
		}},
		{fmt.Sprintf("  p99 later by, at most %.1fx", mostLater), func(s *storm) string {
			ratio := quotient(percentile(s.meanwhile, 99), percentile(s.quiet, 99))
			return times(ratio) + " " + verdict(ratio <= mostLater)
		}},
	}
	width := 0
	for _, s := range all {
		width = max(width, len(s.name))
	}
	fmt.Fprintf(w, "  %-*s", nameWidth, "")
	for _, s := range all {
		fmt.Fprintf(w, "  %*s", width, s.name)
	}
	fmt.Fprintln(w)
	for _, r := range rows {
		fmt.Fprintf(w, "  %-*s", nameWidth, r.name)
		for s := range slices.Values(all) {
			fmt.Fprintf(w, "  %*s", width, r.of(s))
		}
		fmt.Fprintln(w)
	}
}
