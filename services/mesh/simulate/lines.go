package simulate

import (
	"fmt"
	"strings"
)

// Lines describes the outcome for people: the way of the call, what policies say about
// it, where it goes, and what else happens to it.
func (o Outcome) Lines() []string {
	var lines []string
	say := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	var way []string
	for _, w := range []string{o.Listener, o.FilterChain, o.RouteConfiguration, o.VirtualHost, o.Route} {
		if w != "" {
			way = append(way, w)
		}
	}
	if len(way) > 0 {
		say("by %s", strings.Join(way, " / "))
	}
	for _, d := range o.Decisions {
		say("%s", d)
	}
	if o.Unknown != "" {
		say("%s", o.Unknown)
	}
	total := uint32(0)
	for _, d := range o.To {
		total += d.Weight
	}
	for _, d := range o.To {
		share := ""
		if len(o.To) > 1 {
			share = fmt.Sprintf("%d%% ", 100*d.Weight/max(total, 1))
		}
		end := strings.Join(d.Endpoints, ", ")
		switch {
		case d.Missing:
			end = "no such cluster: 503"
		case end == "":
			end = "no endpoints: 503"
		}
		say("%s%s -> %s", share, d.Cluster, end)
	}
	if o.Status != 0 && !o.Refused { // of a refusal, the decision says it
		say("%s", strings.TrimSpace(fmt.Sprintf("%d %s %s", o.Status, o.Location, o.Body)))
	}
	for _, n := range o.Notes {
		say("%s", n)
	}
	if o.Closed && !o.Refused {
		say("connection closed")
	}
	return lines
}
