package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"meshlog.dev/deploy/e2e/load/fleet"
	"meshlog.dev/deploy/e2e/rig"
)

// print writes the report: figures, stages of a change, targets.
func (r *results) print(w io.Writer) {
	r.printWorld(w)
	r.table(w, "", figureRows, func(*result) bool { return true })
	measured := func(c *result) bool { return c.classes > 0 }
	r.table(w, "Where the time of an endpoint change goes, p50 / p99 in ms", stageRows(endpointOf), measured)
	r.table(w, "Where the time of a route change goes, p50 / p99 in ms", stageRows(routeOf), measured)
	r.printTargets(w)
}

func (r *results) printWorld(w io.Writer) {
	s := r.plan.size
	fmt.Fprintf(w, "\nLoad: %d services x %d endpoints, %d with VirtualService and DestinationRule; %d changes of each kind; %s\n\n",
		s.Services, s.Endpoints, min(s.Rules, s.Services), r.plan.rounds, r.plan.mode)
	var parts []string
	for _, t := range fleet.Types() {
		parts = append(parts, fmt.Sprintf("%s %s", t, bytes(int64(len(r.lesson.Answers[t])))))
	}
	fmt.Fprintf(w, "  A first sync is %s: %s; %d names of EDS, %d of RDS.\n", bytes(int64(r.lesson.Size())),
		strings.Join(parts, ", "), len(r.lesson.Names.Endpoints), len(r.lesson.Names.Routes))
	c := r.cases[len(r.cases)-1]
	fmt.Fprintf(w, "  A change of an endpoint brings each proxy %s, of a route %s.\n",
		bytes(int64(len(c.endpoint.resources))), bytes(int64(len(c.route.resources))))
}

// row is a line of a table. A heading has no figures.
type row struct {
	name string
	of   func(*result) string
}

const (
	nameWidth   = 44
	figureWidth = 15
)

// table prints the wanted cases side by side.
func (r *results) table(w io.Writer, title string, rows []row, want func(*result) bool) {
	var cases []*result
	for _, c := range r.cases {
		if want(c) {
			cases = append(cases, c)
		}
	}
	fmt.Fprintln(w)
	if title != "" {
		fmt.Fprintf(w, "%s\n\n", title)
	}
	line := func(name string, of func(*result) string) {
		fmt.Fprintf(w, "  %-*s", nameWidth, name)
		for _, c := range cases {
			fmt.Fprintf(w, " %*s", figureWidth, of(c))
		}
		fmt.Fprintln(w)
	}
	line("", func(c *result) string { return fmt.Sprintf("%d proxies", c.streams) })
	line("", (*result).name)
	for _, row := range rows {
		if row.of == nil {
			fmt.Fprintf(w, "  %s\n", row.name)
			continue
		}
		line(row.name, row.of)
	}
}

func (c *result) name() string {
	switch c.classes {
	case 0:
		return "floor"
	case 1:
		return "1 class"
	default:
		return fmt.Sprintf("%d classes", c.classes)
	}
}

func endpointOf(c *result) *changed { return &c.endpoint }
func routeOf(c *result) *changed    { return &c.route }

var figureRows = slices.Concat(
	[]row{
		{"First sync, from all connecting at once", nil},
		{"  half of the proxies have all types", func(c *result) string { return ms(percentile(c.first, 50)) }},
		{"  all have", func(c *result) string { return ms(last(c.first)) }},
		{"  processor time, server", func(c *result) string { return ms(c.firstUsage.server) }},
		{"  processor time, proxies", func(c *result) string { return ms(c.firstUsage.own) }},
		{"  processor time, other processes", func(c *result) string { return ms(c.firstUsage.others()) }},
		{"  sent", func(c *result) string { return bytes(c.firstUsage.bytes) }},
	},
	changeRows("Endpoint change, save to ACK", endpointOf),
	changeRows("Route change, save to ACK", routeOf),
	[]row{
		{"Memory, resident", nil},
		{"  before the first proxy", func(c *result) string { return bytes(c.idle.resident) }},
		{"  settled, with all of them", func(c *result) string { return bytes(c.settled.resident) }},
		{"  increase for each proxy", func(c *result) string { return bytes(c.perProxy()) }},
		{"  increase for each further proxy", func(c *result) string {
			if c.fewest == c {
				return "-"
			}
			return bytes(c.perMoreProxy())
		}},
		{"  peak", func(c *result) string { return bytes(c.settled.peak) }},
		{"Streams refused at first", func(c *result) string { return fmt.Sprint(c.refused) }},
		{"Responses without a cause", func(c *result) string { return fmt.Sprint(c.unexpected) }},
	},
)

func changeRows(title string, of func(*result) *changed) []row {
	return []row{
		{title, nil},
		{"  p50 of all proxies in all rounds", func(c *result) string { return ms(percentile(of(c).all(), 50)) }},
		{"  p99", func(c *result) string { return ms(percentile(of(c).all(), 99)) }},
		{"  the last proxy, p50 of all rounds", func(c *result) string { return ms(percentile(of(c).lasts(), 50)) }},
		{"  the last proxy, longest", func(c *result) string { return ms(last(of(c).lasts())) }},
		{"  p50, holdoff not counted", func(c *result) string { return ms(percentile(of(c).but(c.holdoff), 50)) }},
		{"  p99, holdoff not counted", func(c *result) string { return ms(percentile(of(c).but(c.holdoff), 99)) }},
		{"  processor time of a round, server", func(c *result) string { return ms(of(c).each(of(c).usage.server)) }},
		{"  processor time of a round, proxies", func(c *result) string { return ms(of(c).each(of(c).usage.own)) }},
		{"  processor time of a round, other processes", func(c *result) string { return ms(of(c).each(of(c).usage.others())) }},
	}
}

// perProxy returns the server's memory for each proxy. State that is kept for all
// proxies is divided among them.
func (c *result) perProxy() int64 {
	return (c.settled.resident - c.idle.resident) / int64(c.streams)
}

// perMoreProxy returns the memory of each proxy beyond the fewest that were
// measured, which leaves out state that is kept for all of them. There must be a
// case with fewer proxies.
func (c *result) perMoreProxy() int64 {
	return (c.settled.resident - c.fewest.settled.resident) / int64(c.streams-c.fewest.streams)
}

// each returns the share of one round.
func (c *changed) each(all time.Duration) time.Duration {
	return all / time.Duration(len(c.rounds))
}

// holdoff returns how long the builder waited for more changes in a round.
func (c *result) holdoff(r round) time.Duration {
	t, err := r.timing(c.timings)
	if err != nil {
		return 0 // the floor has no holdoff
	}
	return t.Due.Sub(t.Read)
}

// stage holds the builder's timings of a round.
type stage = rig.StageTiming

// stages are the stages of one change, in order.
var stages = []struct {
	name string
	took func(r round, t stage) time.Duration
}{
	{"save -> observed by the watcher", func(r round, t stage) time.Duration { return t.Observed.Sub(r.saved) }},
	{"observed -> on the log, synced", func(_ round, t stage) time.Duration { return t.Logged.Sub(t.Observed) }},
	{"on the log -> read by the builder", func(_ round, t stage) time.Duration { return t.Read.Sub(t.Logged) }},
	{"read -> holdoff is over", func(_ round, t stage) time.Duration { return t.Due.Sub(t.Read) }},
	{"holdoff is over -> built", func(_ round, t stage) time.Duration { return t.Built.Sub(t.Due) }},
	{"built -> published, synced", func(_ round, t stage) time.Duration { return t.Published.Sub(t.Built) }},
	// A frontend may have the version before the builder gets the acknowledgement
	// of the publish.
	{"published -> first proxy's ACK", func(r round, t stage) time.Duration { return r.saved.Add(r.took[0]).Sub(t.Published) }},
	{"first -> last proxy's ACK", func(r round, _ stage) time.Duration { return last(r.took) - r.took[0] }},
	{"save -> last proxy's ACK", func(r round, _ stage) time.Duration { return last(r.took) }},
}

func stageRows(of func(*result) *changed) []row {
	var rows []row
	for _, s := range stages {
		rows = append(rows, row{s.name, func(c *result) string {
			var took []time.Duration
			for _, r := range of(c).rounds {
				if t, err := r.timing(c.timings); err == nil {
					took = append(took, s.took(r, t))
				}
			}
			slices.Sort(took)
			return fmt.Sprintf("%.1f / %.1f", inMS(percentile(took, 50)), inMS(percentile(took, 99)))
		}})
	}
	return rows
}

func inMS(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", inMS(d)) }

func bytes(n int64) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%.2f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	default:
		return fmt.Sprintf("%d B", n)
	}
}
