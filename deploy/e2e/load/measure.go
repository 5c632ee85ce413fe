package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"meshlog.dev/deploy/e2e/load/fleet"
	"meshlog.dev/deploy/e2e/load/world"
)

// warmups is how many changes come before the counted ones: the holdoff adapts to
// how long the previous build took, which built the whole world.
const warmups = 1

// target is a server under measurement.
type target struct {
	address string // of xDS
	pid     int
	admin   int // port of its pprof
	// change causes a response of a type.
	change func(ctx context.Context, t fleet.Type) (world.Change, error)
}

// figures are the measurements of a server with a fleet.
type figures struct {
	first      []time.Duration // of each proxy, from when all connect to its last ACK
	firstUsage usage
	endpoint   changed
	route      changed
	filter     changed // a policy; none unless the plan says so
	idle       memory  // before the first proxy
	settled    memory  // with all proxies, after all rounds
	refused    int64   // streams that had to try again
	unexpected int64   // responses without a cause
}

// changed holds the rounds of one kind of change.
type changed struct {
	rounds    []round
	usage     usage
	resources []byte // resources of the last response to one proxy
}

// round is one change.
type round struct {
	saved time.Time
	took  []time.Duration // of each proxy, from the save to its ACK; sorted
}

// measure connects a fleet to a server, and makes changes.
func measure(ctx context.Context, t target, c fleet.Config, p plan) (_ *figures, err error) {
	f := &figures{}
	if f.idle, err = t.settled(ctx, p.pause); err != nil {
		return nil, err
	}
	before, err := t.usage(0)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	proxies, wave := fleet.Connect(ctx, c)
	defer proxies.Close()
	if err := wave.Wait(ctx); err != nil {
		return nil, fmt.Errorf("first sync: %w", err)
	}
	f.first = sorted(wave.Took(start))
	if f.firstUsage, err = t.since(before, proxies.Bytes()); err != nil {
		return nil, err
	}
	if f.endpoint, err = t.rounds(ctx, proxies, fleet.EDS, p); err != nil {
		return nil, err
	}
	if f.route, err = t.rounds(ctx, proxies, fleet.RDS, p); err != nil {
		return nil, err
	}
	if p.filters {
		if f.filter, err = t.rounds(ctx, proxies, fleet.ECDS, p); err != nil {
			return nil, err
		}
	}
	f.refused, f.unexpected = proxies.Refused(), proxies.Unexpected()
	f.settled, err = t.settled(ctx, p.pause)
	return f, err
}

// rounds makes the changes of a type, one after the other.
func (t target) rounds(ctx context.Context, proxies *fleet.Fleet, of fleet.Type, p plan) (c changed, err error) {
	var before usage
	for i := range warmups + p.rounds {
		if err := wait(ctx, p.pause); err != nil {
			return c, err
		}
		if i == warmups {
			if before, err = t.usage(proxies.Bytes()); err != nil {
				return c, err
			}
		}
		wave := proxies.Expect(of)
		change, err := t.change(ctx, of)
		if err != nil {
			return c, err
		}
		if err := wave.Wait(ctx); err != nil {
			return c, fmt.Errorf("change %d of %s: %w", i, of, err)
		}
		if c.resources, err = wave.Resources(change.Token); err != nil {
			return c, fmt.Errorf("change %d of %s: %w", i, of, err)
		}
		if i >= warmups {
			c.rounds = append(c.rounds, round{change.Saved, sorted(wave.Took(change.Saved))})
		}
	}
	// Responses that the last round causes after its last ACK count too.
	if err := wait(ctx, p.pause); err != nil {
		return c, err
	}
	c.usage, err = t.since(before, proxies.Bytes())
	return c, err
}

// all returns the time that every proxy took in every round.
func (c changed) all() []time.Duration {
	return c.but(func(round) time.Duration { return 0 })
}

// but returns the same times as all, without the part of each round that does not
// count.
func (c changed) but(part func(round) time.Duration) []time.Duration {
	var all []time.Duration
	for _, r := range c.rounds {
		less := part(r)
		for _, took := range r.took {
			all = append(all, took-less)
		}
	}
	return sorted(all)
}

// lasts returns the time of the last proxy of each round.
func (c changed) lasts() []time.Duration {
	var out []time.Duration
	for _, r := range c.rounds {
		out = append(out, last(r.took))
	}
	return sorted(out)
}

func sorted(took []time.Duration) []time.Duration {
	slices.Sort(took)
	return took
}

// last returns the longest of sorted times.
func last(took []time.Duration) time.Duration { return took[len(took)-1] }

// percentile returns the smallest of the sorted values that p percent do not
// exceed.
func percentile(sorted []time.Duration, p int) time.Duration {
	return sorted[max(0, (len(sorted)*p+99)/100-1)]
}
