package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"meshlog.dev/deploy/e2e/load/fleet"
	"meshlog.dev/deploy/e2e/load/world"
	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/testport"
)

// joinCommand measures how soon a new frontend serves a proxy, and what that
// costs the builder.
const joinCommand = "join"

// maxJoin is the target at 1000 services.
const maxJoin = 2 * time.Second

// joinPlan holds the settings of the measurement.
type joinPlan struct {
	size  world.Size
	joins int // one after the other; all stay
	// watch is how long the builder's processor time is measured: without a join,
	// and with one.
	watch time.Duration
}

// join is the cost of one new frontend.
type join struct {
	// served is the time from the start of its process, which has only its
	// identity and the address of the bus, to the last first answer to a proxy.
	served time.Duration
	// builder is the processor time of the builder in the watch that began with
	// the join.
	builder time.Duration
}

type joins struct {
	all   []join
	quiet []time.Duration // the builder's processor time in watches without a join
}

func parseJoin(args []string) (joinPlan, error) {
	p := joinPlan{size: standard.size, joins: 8, watch: 3 * time.Second}
	fs := flag.NewFlagSet("load "+joinCommand, flag.ContinueOnError)
	fs.IntVar(&p.size.Services, "services", p.size.Services, "`services` in the mesh")
	fs.IntVar(&p.joins, "joins", p.joins, "new `frontends`, one after the other; at most 20")
	if err := fs.Parse(args); err != nil {
		return p, err
	}
	switch {
	case p.joins < 1 || p.joins > 20:
		return p, fmt.Errorf("-joins %d: from 1 to 20", p.joins)
	case p.size.Services < 1 || p.size.Services > 20_000:
		return p, fmt.Errorf("-services %d: from 1 to 20000", p.size.Services)
	}
	return p, nil
}

func runJoins(ctx context.Context, p joinPlan) (_ *joins, err error) {
	dir, err := os.MkdirTemp("", "meshlog-join-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	w, err := world.New(dir, p.size)
	if err != nil {
		return nil, err
	}
	mesh, err := rig.Apart(ctx, dir, w.Path, 1, 1)
	if err != nil {
		return nil, err
	}
	defer mesh.End()
	// The first frontend shows when the builder has published the world.
	if _, err := learn(ctx, mesh, w, plan{size: p.size}); err != nil {
		return nil, err
	}
	out := &joins{}
	var joined []*rig.Server
	defer func() {
		for _, f := range joined {
			f.Kill()
		}
	}()
	for i := range p.joins {
		quiet, err := watch(ctx, mesh, p.watch, func() error { return nil })
		if err != nil {
			return nil, err
		}
		out.quiet = append(out.quiet, quiet)
		var j join
		j.builder, err = watch(ctx, mesh, p.watch, func() error {
			f, served, err := joinOne(ctx, mesh, w, filepath.Join(dir, fmt.Sprint("new-", i)))
			if f != nil {
				joined = append(joined, f)
			}
			j.served = served
			return err
		})
		if err != nil {
			return nil, err
		}
		out.all = append(out.all, j)
	}
	return out, nil
}

// watch returns the processor time that the builder uses in a stretch of time
// that begins with do.
func watch(ctx context.Context, mesh *rig.Mesh, stretch time.Duration, do func() error) (time.Duration, error) {
	pid := mesh.Builders[0].PID()
	before, err := cpuOf(pid)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := do(); err != nil {
		return 0, err
	}
	if err := wait(ctx, stretch-time.Since(began)); err != nil {
		return 0, err
	}
	after, err := cpuOf(pid)
	return after - before, err
}

func joinOne(ctx context.Context, mesh *rig.Mesh, w *world.World, data string) (*rig.Server, time.Duration, error) {
	node, err := fleet.Sidecar(0, w.Namespace(0))
	if err != nil {
		return nil, 0, err
	}
	port, err := testport.TCP()
	if err != nil {
		return nil, 0, err
	}
	began := time.Now()
	f, err := rig.StartFrontend(filepath.Dir(data), filepath.Base(data), data, port, mesh.NATS.Flags("frontend")...)
	if err != nil {
		return nil, 0, err
	}
	err = f.UntilAlive(ctx, f.Name+" to answer a proxy", func(ctx context.Context) error {
		_, err := fleet.Learn(ctx, address(port), fleet.SotW, node)
		return err
	})
	return f, time.Since(began), err
}

func printJoins(w io.Writer, p joinPlan, j *joins) {
	var served, builder []time.Duration
	for _, one := range j.all {
		served, builder = append(served, one.served), append(builder, one.builder)
	}
	served = sorted(served)
	fmt.Fprintf(w, "%d frontends join one after the other, each with an empty directory; %d services with %d endpoints\n\n",
		len(j.all), p.size.Services, p.size.Endpoints)
	fmt.Fprintf(w, "  start to all first answers to a proxy  p50 %s, longest %s", ms(percentile(served, 50)), ms(last(served)))
	if p.size.Services <= standard.size.Services {
		fmt.Fprintf(w, "  %s (at most %s)", verdict(last(served) <= maxJoin), maxJoin)
	}
	fmt.Fprintf(w, "\n  processor time of the builder in %s   %s with a join, %s without\n", p.watch, ms(mean(builder)), ms(mean(j.quiet)))
}

func mean(all []time.Duration) time.Duration {
	var sum time.Duration
	for _, d := range all {
		sum += d
	}
	return sum / time.Duration(len(all))
}
