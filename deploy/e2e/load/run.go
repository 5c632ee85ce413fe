package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"meshlog.dev/deploy/e2e/load/fleet"
	"meshlog.dev/deploy/e2e/load/world"
	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/program"
)

// plan holds the settings of a run.
type plan struct {
	size    world.Size
	streams []int // numbers of proxies
	classes []int // numbers of namespaces; each is measured with every number of proxies
	rounds  int   // changes of each kind
	filters bool  // policies change too
	alone   bool  // only the first numbers of proxies and classes, without the floor
	mode    fleet.Mode
	// pause separates two rounds, so that a round does not overlap with the ACKs
	// of the previous round.
	pause time.Duration
}

// standard is the plan of the figures in the README.
var standard = plan{
	size:    world.Size{Services: 1001, Endpoints: 10, Rules: 100, Namespaces: 100},
	streams: []int{100, 500},
	classes: []int{1, 100},
	rounds:  20,
	pause:   250 * time.Millisecond,
}

func (p plan) check() error {
	for _, n := range p.streams {
		if n < 1 || n > most {
			return fmt.Errorf("-streams %d: from 1 to %d", n, most)
		}
	}
	for _, n := range p.classes {
		if n < 1 || n > p.size.Namespaces {
			return fmt.Errorf("-classes %d: from 1 to %d", n, p.size.Namespaces)
		}
	}
	switch {
	case p.rounds < 1 || p.rounds > 100:
		return fmt.Errorf("-rounds %d: from 1 to 100", p.rounds)
	case p.size.Services < 1 || p.size.Services > 20_000:
		return fmt.Errorf("-services %d: from 1 to 20000", p.size.Services)
	case p.size.Policies < 0 || p.size.Policies > 1000:
		return fmt.Errorf("-policies %d: from 0 to 1000", p.size.Policies)
	case p.size.Endpoints < 2 || p.size.Endpoints > 100:
		return fmt.Errorf("-endpoints %d: from 2 to 100", p.size.Endpoints)
	}
	return nil
}

// results are the figures of a run.
type results struct {
	plan   plan
	lesson *fleet.Lesson
	cases  []*result // by number of proxies: the floor, then by classes
}

// result is the measurement of one fleet.
type result struct {
	streams int
	classes int // 0: the floor
	*figures
	timings []rig.StageTiming // from the builder
	fewest  *result           // the case of as many classes with the fewest proxies
}

// run measures all cases.
func run(ctx context.Context, p plan) (_ *results, err error) {
	dir, err := os.MkdirTemp("", "meshlog-load-")
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
	r := &results{plan: p}
	if r.lesson, err = learn(ctx, mesh, w, p); err != nil {
		return nil, err
	}
	if p.alone {
		c, err := meshCase(ctx, mesh, w, r, p.streams[0], p.classes[0])
		r.cases = append(r.cases, c)
		return r, err
	}
	for _, n := range p.streams {
		if err := r.measure(ctx, dir, mesh, w, n); err != nil {
			return nil, fmt.Errorf("%d proxies: %w", n, err)
		}
	}
	r.order()
	return r, nil
}

// order sorts the cases so that compared cases stand side by side, and finds the
// case with the fewest proxies for each.
func (r *results) order() {
	slices.SortStableFunc(r.cases, func(a, b *result) int {
		return cmp.Or(a.streams-b.streams, a.classes-b.classes)
	})
	for _, c := range r.cases {
		i := slices.IndexFunc(r.cases, func(other *result) bool { return other.classes == c.classes })
		c.fewest = r.cases[i]
	}
}

// measure measures one number of proxies: in the first number of classes, then
// with the floor, so that little time lies between the two, then in the other
// numbers of classes.
func (r *results) measure(ctx context.Context, dir string, mesh *rig.Mesh, w *world.World, streams int) error {
	for i, classes := range r.plan.classes {
		c, err := meshCase(ctx, mesh, w, r, streams, classes)
		if err != nil {
			return fmt.Errorf("in %d classes: %w", classes, err)
		}
		r.cases = append(r.cases, c)
		if i > 0 {
			continue
		}
		if c, err = floorCase(ctx, dir, w, r, c); err != nil {
			return fmt.Errorf("floor: %w", err)
		}
		r.cases = append(r.cases, c)
	}
	return nil
}

// learn finds out the names that proxies ask for.
func learn(ctx context.Context, mesh *rig.Mesh, w *world.World, p plan) (*fleet.Lesson, error) {
	node, err := fleet.Sidecar(0, w.Namespace(0))
	if err != nil {
		return nil, err
	}
	f := mesh.Frontends[0]
	l, err := fleet.Learn(ctx, address(f.XDS), p.mode, node)
	if err != nil {
		return nil, err
	}
	if len(l.Names.Endpoints) < p.size.Services {
		return nil, fmt.Errorf("%s knows %d services with endpoints, want %d or more", f.Name, len(l.Names.Endpoints), p.size.Services)
	}
	if len(l.Names.Routes) == 0 {
		return nil, fmt.Errorf("no listener of %s refers to routes", f.Name)
	}
	return l, nil
}

func address(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// meshCase measures a fleet with a newly started frontend.
func meshCase(ctx context.Context, mesh *rig.Mesh, w *world.World, r *results, streams, classes int) (*result, error) {
	f := mesh.Frontends[0]
	if err := f.Stop(); err != nil {
		return nil, err
	}
	if err := f.Restart(); err != nil {
		return nil, err
	}
	if err := f.Ready(ctx); err != nil {
		return nil, err
	}
	t := target{address: address(f.XDS), pid: f.PID(), admin: f.Admin}
	t.change = func(_ context.Context, of fleet.Type) (world.Change, error) {
		switch of {
		case fleet.EDS:
			return w.ChangeEndpoint()
		case fleet.ECDS:
			return w.ChangePolicy()
		default:
			return w.ChangeRoute()
		}
	}
	c, err := r.config(w, t, streams, classes)
	if err != nil {
		return nil, err
	}
	out := &result{streams: streams, classes: classes}
	if out.figures, err = measure(ctx, t, c, r.plan); err != nil {
		return nil, errors.Join(err, f.Running())
	}
	out.timings, err = timings(ctx, mesh, out.figures)
	return out, err
}

// config returns a fleet, spread over as many namespaces as there are classes.
func (r *results) config(w *world.World, t target, streams, classes int) (fleet.Config, error) {
	c := fleet.Config{Target: t.address, Mode: r.plan.mode, Names: r.lesson.Names}
	for i := range streams {
		node, err := fleet.Sidecar(i, w.Namespace(i%classes))
		if err != nil {
			return c, err
		}
		c.Nodes = append(c.Nodes, node)
	}
	return c, nil
}

// timings returns the builder's timings of the rounds.
func timings(ctx context.Context, mesh *rig.Mesh, f *figures) ([]rig.StageTiming, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	builder := mesh.Builders[0]
	var r rig.BuilderReport
	// The builder reports its timings a moment later.
	err := program.Until(ctx, "the timings of "+builder.Name, func(ctx context.Context) error {
		if err := builder.Debug(ctx, "builder", &r); err != nil {
			return err
		}
		for _, round := range slices.Concat(f.endpoint.rounds, f.route.rounds, f.filter.rounds) {
			if _, err := round.timing(r.Timings); err != nil {
				return err
			}
		}
		return nil
	})
	return r.Timings, err
}

// timing returns the timing of the version that a round caused.
func (r round) timing(all []rig.StageTiming) (rig.StageTiming, error) {
	end := r.saved.Add(last(r.took))
	for _, t := range all {
		if t.Observed.After(r.saved) && t.Observed.Before(end) {
			return t, nil
		}
	}
	return rig.StageTiming{}, fmt.Errorf("none of %d timings is of the change saved at %s", len(all), r.saved.Format(time.TimeOnly))
}
