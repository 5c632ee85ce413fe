// Bench measures what one change costs, from the save of a file to Envoy's
// acknowledgement, stage by stage: with everything in one process, and with
// separate processes. It compares the results with the floor: the cost of NATS
// and the disk alone. `make bench` builds the programs and runs it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"meshlog.dev/deploy/e2e/floor"
	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/e2e/shop"
	"meshlog.dev/deploy/testkit/program"
)

// changes is how many changes the bench measures in each arrangement, one after
// the other.
const changes = 200

// patience bounds the whole run.
const patience = 5 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("the bench did not end within %s", patience))
	defer cancel()
	if err := run(ctx, os.Stdout, changes); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		cancel()
		os.Exit(1)
	}
}

// run measures n changes in each arrangement.
func run(ctx context.Context, w io.Writer, n int) error {
	base, err := bus(ctx, n)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\nFloor: two synced publishes, one read, one delivery, %d times\n\n", n)
	report(w, []stage{{"floor", base}})

	for _, a := range []struct {
		name  string
		start func(ctx context.Context, dir, config string) (*rig.Mesh, error)
	}{
		{"one process (meshlog up)", rig.Up},
		{"separate processes", func(ctx context.Context, dir, config string) (*rig.Mesh, error) {
			return rig.Apart(ctx, dir, config, 1, 1)
		}},
	} {
		stages, err := measure(ctx, a.start, n)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "\nSave to ACK, %s: %d changes of a route's weights\n\n", a.name, n)
		report(w, stages)
		last := stages[len(stages)-1]
		fmt.Fprintf(w, "\n  %s: %.1f times the floor at p50, %.1f times at p99\n", last.name, ratio(last.took, base, 50), ratio(last.took, base, 99))
	}
	return nil
}

// bus measures the floor.
func bus(ctx context.Context, n int) (_ []time.Duration, err error) {
	dir, err := os.MkdirTemp("", "meshlog-floor-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	nats, err := rig.StartNATS(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer nats.Kill()
	key, err := nats.Admin()
	if err != nil {
		return nil, err
	}
	return floor.Measure(ctx, nats.URL(), key, n)
}

// stage is how long one stage took, for each change.
type stage struct {
	name string
	took []time.Duration
}

func report(w io.Writer, stages []stage) {
	fmt.Fprintf(w, "  %-44s %10s %10s\n", "", "p50", "p99")
	for _, s := range stages {
		fmt.Fprintf(w, "  %-44s %10s %10s\n", s.name, show(percentile(s.took, 50)), show(percentile(s.took, 99)))
	}
}

func show(d time.Duration) string {
	return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
}

func ratio(a, b []time.Duration, p int) float64 {
	return float64(percentile(a, p)) / float64(percentile(b, p))
}

// percentile returns the smallest value that p percent do not exceed.
func percentile(took []time.Duration, p int) time.Duration {
	sorted := slices.Sorted(slices.Values(took))
	return sorted[max(0, (len(sorted)*p+99)/100-1)]
}

// change holds the times of one change.
type change struct {
	saved                                         time.Time
	observed, logged, read, due, built, published time.Time // as the builder saw them
	sent, acked                                   time.Time // as the frontend saw them
}

// spans are the stages, in order, followed by sums. The last sum has the target, and
// is compared with the floor.
var spans = []struct {
	name string
	took func(change) time.Duration
}{
	{"save -> observed by the watcher", func(c change) time.Duration { return c.observed.Sub(c.saved) }},
	{"observed -> on the log, synced", func(c change) time.Duration { return c.logged.Sub(c.observed) }},
	{"on the log -> read by the builder", func(c change) time.Duration { return c.read.Sub(c.logged) }},
	{"read -> holdoff is over", func(c change) time.Duration { return c.due.Sub(c.read) }},
	{"holdoff is over -> built", func(c change) time.Duration { return c.built.Sub(c.due) }},
	// A frontend may have the version before the builder gets the acknowledgement
	// of the publish.
	{"built -> first byte from the frontend", func(c change) time.Duration { return c.sent.Sub(c.built) }},
	{"  built -> published, synced", func(c change) time.Duration { return c.published.Sub(c.built) }},
	{"first byte -> Envoy's ACK", func(c change) time.Duration { return c.acked.Sub(c.sent) }},
	{"save -> ACK", func(c change) time.Duration { return c.acked.Sub(c.saved) }},
	{"save -> first byte", func(c change) time.Duration { return c.sent.Sub(c.saved) }},
	{"save -> first byte, holdoff not counted", func(c change) time.Duration { return c.sent.Sub(c.saved) - c.due.Sub(c.read) }},
}

// measure runs a mesh and an Envoy, and saves changes one after the other.
func measure(ctx context.Context, start func(ctx context.Context, dir, config string) (*rig.Mesh, error), n int) (_ []stage, err error) {
	dir, err := os.MkdirTemp("", "meshlog-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s, err := shop.New(dir, []int{1}, []int{2}) // no request is sent
	if err != nil {
		return nil, err
	}
	mesh, err := start(ctx, dir, s.Path)
	if err != nil {
		return nil, err
	}
	defer mesh.End()
	envoy, err := mesh.Join(ctx, rig.EnvoyConfig{Node: "envoy-1", Cluster: "demo"}, s.Port)
	if err != nil {
		return nil, err
	}
	defer envoy.Kill()

	first, err := mesh.Acked(ctx, "envoy-1", rig.RouteConfiguration, rig.Version{})
	if err != nil {
		return nil, err
	}
	at := first.Acked
	all := map[rig.Version]*change{}
	for i := range n {
		c, version, err := save(ctx, s, mesh, i, at)
		if err != nil {
			return nil, fmt.Errorf("change %d: %w", i, err)
		}
		all[version], at = &c, version
	}
	return staged(ctx, mesh, all)
}

// save makes one change, and waits until Envoy has acknowledged a version newer
// than before.
func save(ctx context.Context, s *shop.Shop, mesh *rig.Mesh, i int, before rig.Version) (change, rig.Version, error) {
	v2 := 1 + i%99 // another weight each time
	saved, err := s.Weights(100-v2, v2)
	if err != nil {
		return change{}, rig.Version{}, err
	}
	t, err := mesh.Acked(ctx, "envoy-1", rig.RouteConfiguration, before)
	return change{saved: saved, sent: t.SentTime, acked: t.AckedTime}, t.Sent, err
}

// staged adds the builder's timings, and turns changes into stages.
func staged(ctx context.Context, mesh *rig.Mesh, all map[rig.Version]*change) ([]stage, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	builder := mesh.Builders[0]
	// The builder reports its timings a moment later.
	err := program.Until(ctx, "the timings of "+builder.Name, func(ctx context.Context) error {
		var r rig.BuilderReport
		if err := builder.Debug(ctx, "builder", &r); err != nil {
			return err
		}
		for _, t := range r.Timings {
			if c, ok := all[t.Version]; ok {
				c.observed, c.logged, c.read = t.Observed, t.Logged, t.Read
				c.due, c.built, c.published = t.Due, t.Built, t.Published
			}
		}
		for v, c := range all {
			if c.published.IsZero() {
				return fmt.Errorf("none of %[2]d timings is of version %[1]s", v, len(r.Timings))
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	out := make([]stage, len(spans))
	for i, s := range spans {
		out[i].name = s.name
		for _, c := range all {
			out[i].took = append(out[i].took, s.took(*c))
		}
	}
	return out, nil
}
