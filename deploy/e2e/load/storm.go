package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"meshlog.dev/deploy/e2e/load/fleet"
	"meshlog.dev/deploy/e2e/load/world"
	"meshlog.dev/deploy/e2e/rig"
)

// stormCommand measures what happens when all proxies reconnect at once.
const stormCommand = "storm"

// stormPlan holds the settings of the measurement.
type stormPlan struct {
	size    world.Size
	streams int // proxies that reconnect
	served  int // proxies that are served meanwhile
	rounds  int // changes before the storm
	pause   time.Duration
}

var standardStorm = stormPlan{
	size:    standard.size,
	streams: 2000,
	served:  50,
	rounds:  40,
	pause:   100 * time.Millisecond,
}

func parseStorm(args []string) (stormPlan, error) {
	p := standardStorm
	fs := flag.NewFlagSet("load "+stormCommand, flag.ContinueOnError)
	fs.IntVar(&p.streams, "streams", p.streams, "`proxies` that reconnect at once; at most 2000")
	fs.IntVar(&p.served, "served", p.served, "`proxies` that stay, and see changes meanwhile; at most 500")
	fs.IntVar(&p.size.Services, "services", p.size.Services, "`services` in the mesh")
	fs.IntVar(&p.rounds, "rounds", p.rounds, "`changes` before each storm, to compare with; at most 100")
	if err := fs.Parse(args); err != nil {
		return p, err
	}
	switch {
	case p.streams < 3 || p.streams > most:
		return p, fmt.Errorf("-streams %d: from 3 to %d", p.streams, most)
	case p.served < 1 || p.served > 500:
		return p, fmt.Errorf("-served %d: from 1 to 500", p.served)
	case p.rounds < 2 || p.rounds > 100:
		return p, fmt.Errorf("-rounds %d: from 2 to 100", p.rounds)
	case p.size.Services < 1 || p.size.Services > 20_000:
		return p, fmt.Errorf("-services %d: from 1 to 20000", p.size.Services)
	}
	return p, nil
}

// storm is the measurement of one storm.
type storm struct {
	name string
	// back is how long each returning proxy took, from the end of its stream;
	// wanted is the least number of proxies that must return.
	back   []time.Duration
	counts herdCounts
	usage  usage  // of the watched frontend
	idle   memory // of the watched frontend, before
	peak   int64  // of the watched frontend, since the storm began
	// quiet and meanwhile are how long a change took to reach the proxies that
	// stayed, before and during the storm.
	quiet, meanwhile []time.Duration
	changes          int // during the storm
}

// scenario is one kind of storm.
type scenario struct {
	name      string
	frontends int
	cold      bool // the proxies return without versions
	die       bool // a frontend is killed; otherwise all streams end by themselves
}

var scenarios = []scenario{
	{"one frontend, all reconnect", 1, false, false},
	{"one frontend, all cold", 1, true, false},
	{"one of three dies", 3, false, true},
	{"one of three dies, all cold", 3, true, true},
}

// runStorms measures all scenarios, each with its own processes.
func runStorms(ctx context.Context, p stormPlan) ([]*storm, error) {
	var all []*storm
	for _, s := range scenarios {
		m, err := runStorm(ctx, p, s)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		all = append(all, m)
	}
	return all, nil
}

func runStorm(ctx context.Context, p stormPlan, s scenario) (_ *storm, err error) {
	dir, err := os.MkdirTemp("", "meshlog-storm-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	w, err := world.New(dir, p.size)
	if err != nil {
		return nil, err
	}
	mesh, err := rig.Apart(ctx, dir, w.Path, 1, s.frontends)
	if err != nil {
		return nil, err
	}
	defer mesh.End()
	lesson, err := learn(ctx, mesh, w, plan{size: p.size})
	if err != nil {
		return nil, err
	}
	// The proxies that stay are at the last frontend, which does not die.
	last := mesh.Frontends[s.frontends-1]
	nodes, err := sidecars(w, p.streams, p.served)
	if err != nil {
		return nil, err
	}
	stay, wave := fleet.Connect(ctx, fleet.Config{Target: address(last.XDS), Nodes: nodes, Names: lesson.Names})
	defer stay.Close()
	if err := wave.Wait(ctx); err != nil {
		return nil, err
	}
	h, err := startHerd(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.end()) }()
	c := fleet.HerdConfig{Names: lesson.Names}
	for _, f := range mesh.Frontends {
		c.Targets = append(c.Targets, address(f.XDS))
	}
	if c.Nodes, err = sidecars(w, 0, p.streams); err != nil {
		return nil, err
	}
	if _, err := h.tell(order{Herd: &c, Wait: true}); err != nil {
		return nil, err
	}
	b := &storming{p: p, s: s, mesh: mesh, world: w, stay: stay, herd: h, watched: target{
		address: address(last.XDS), pid: last.PID(), admin: last.Admin,
	}}
	return b.measure(ctx)
}

// sidecars returns nodes of one class.
func sidecars(w *world.World, first, n int) ([][]byte, error) {
	var nodes [][]byte
	for i := range n {
		node, err := fleet.Sidecar(first+i, w.Namespace(0))
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, node)
	}
	return nodes, nil
}

// storming is a scenario whose processes run.
type storming struct {
	p       stormPlan
	s       scenario
	mesh    *rig.Mesh
	world   *world.World
	stay    *fleet.Fleet
	herd    *herd
	watched target // the frontend of the proxies that stay
}

func (b *storming) measure(ctx context.Context) (*storm, error) {
	m := &storm{name: b.s.name}
	var err error
	if m.idle, err = b.watched.settled(ctx, b.p.pause); err != nil {
		return nil, err
	}
	for i := range warmups + b.p.rounds {
		took, err := b.change(ctx)
		if err != nil {
			return nil, err
		}
		if i >= warmups {
			m.quiet = append(m.quiet, took...)
		}
	}
	if err := resetPeak(b.watched.pid); err != nil {
		return nil, err
	}
	before, err := b.watched.usage(0)
	if err != nil {
		return nil, err
	}
	back, counted, err := b.begin()
	if err != nil {
		return nil, err
	}
	over := make(chan struct{})
	var report herdReport
	var herdErr error
	go func() {
		defer close(over)
		report, herdErr = b.herd.tell(order{Wait: true})
	}()
	for going := true; going; { // at least one change meets the storm
		took, err := b.change(ctx)
		if err != nil {
			return nil, err
		}
		m.meanwhile = append(m.meanwhile, took...)
		m.changes++
		select {
		case <-over:
			going = false
		default:
		}
	}
	if herdErr != nil {
		return nil, herdErr
	}
	if len(report.Took) < back {
		return nil, fmt.Errorf("%d proxies returned, want %d or more", len(report.Took), back)
	}
	m.back, m.counts = report.Took, report.Counts.since(counted)
	if m.usage, err = b.watched.since(before, m.counts.Bytes); err != nil {
		return nil, err
	}
	now, err := memoryOf(b.watched.pid)
	m.peak = now.peak
	m.quiet, m.meanwhile = sorted(m.quiet), sorted(m.meanwhile)
	return m, err
}

// begin starts the storm. It returns the least number of proxies that must
// return, and the herd's earlier counts.
func (b *storming) begin() (least int, before herdCounts, err error) {
	members := fleet.AllTargets
	least = b.p.streams
	if b.s.die {
		members, least = 0, b.p.streams/b.s.frontends
	}
	r, err := b.herd.tell(order{Expect: &members})
	if err != nil {
		return 0, before, err
	}
	if b.s.cold {
		if _, err := b.herd.tell(order{Forget: &members}); err != nil {
			return 0, before, err
		}
	}
	if b.s.die {
		b.mesh.Frontends[0].Kill()
		return least, r.Counts, nil
	}
	_, err = b.herd.tell(order{Scatter: true})
	return least, r.Counts, err
}

// change changes an endpoint, and returns how long it took to reach each proxy
// that stayed.
func (b *storming) change(ctx context.Context) ([]time.Duration, error) {
	if err := wait(ctx, b.p.pause); err != nil {
		return nil, err
	}
	wave := b.stay.Expect(fleet.EDS)
	c, err := b.world.ChangeEndpoint()
	if err != nil {
		return nil, err
	}
	if err := wave.Wait(ctx); err != nil {
		return nil, err
	}
	return wave.Took(c.Saved), nil
}
