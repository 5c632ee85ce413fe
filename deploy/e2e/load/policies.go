package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"slices"
	"time"
)

// policiesCommand compares a mesh with AuthorizationPolicies with the same mesh
// without them.
const policiesCommand = "policies"

const (
	// maxWithPolicies is the most that memory and a push may cost with policies, as a
	// multiple of what they cost without.
	maxWithPolicies = 1.2
	// maxFilterChange is the most that a change of a policy may take, as a multiple of a
	// change of a route.
	maxFilterChange = 1.2
)

type policiesPlan struct {
	plan
	policies int
	runs     int // of each of the two meshes, in turns
}

// policiesRun is one run of each mesh.
type policiesRun struct{ without, with *result }

func parsePolicies(args []string) (policiesPlan, error) {
	p := policiesPlan{plan: standard, policies: 100, runs: 3}
	p.streams, p.classes, p.alone = []int{500}, []int{1}, true
	fs := flag.NewFlagSet("load "+policiesCommand, flag.ContinueOnError)
	fs.IntVar(&p.policies, "policies", p.policies, "`policies` that each select all proxies; at most 1000")
	fs.IntVar(&p.streams[0], "streams", p.streams[0], "`proxies`; at most 2000")
	fs.IntVar(&p.size.Services, "services", p.size.Services, "`services` in the mesh")
	fs.IntVar(&p.runs, "runs", p.runs, "`runs` of each of the two meshes; at most 9")
	if err := fs.Parse(args); err != nil {
		return p, err
	}
	if p.runs < 1 || p.runs > 9 {
		return p, fmt.Errorf("-runs %d: from 1 to 9", p.runs)
	}
	if p.policies < 1 {
		return p, fmt.Errorf("-policies %d: from 1 to 1000", p.policies)
	}
	p.size.Policies = p.policies
	return p, p.check()
}

func runPolicies(ctx context.Context, p policiesPlan) ([]policiesRun, error) {
	one := func(policies int) (*result, error) {
		p.size.Policies, p.filters = policies, policies > 0
		r, err := run(ctx, p.plan)
		if err != nil {
			return nil, fmt.Errorf("with %d policies: %w", policies, err)
		}
		return r.cases[0], nil
	}
	var all []policiesRun
	for range p.runs {
		without, err := one(0)
		if err != nil {
			return nil, err
		}
		with, err := one(p.policies)
		if err != nil {
			return nil, err
		}
		all = append(all, policiesRun{without, with})
	}
	return all, nil
}

// policiesRows are what is compared.
var policiesRows = []struct {
	name string
	of   func(*result) float64
	show func(float64) string
}{
	{"memory of the frontend, settled", func(c *result) float64 { return float64(c.settled.resident) }, func(f float64) string { return bytes(int64(f)) }},
	{"first sync, the last proxy", func(c *result) float64 { return float64(last(c.first)) }, showTime},
	{"endpoint change, p50", func(c *result) float64 { return float64(percentile(c.endpoint.all(), 50)) }, showTime},
	{"endpoint change, processor time of a round, server", func(c *result) float64 { return float64(c.endpoint.each(c.endpoint.usage.server)) }, showTime},
	{"route change, p50, holdoff not counted", func(c *result) float64 { return float64(percentile(c.route.but(c.holdoff), 50)) }, showTime},
	{"route change, processor time of a round, server", func(c *result) float64 { return float64(c.route.each(c.route.usage.server)) }, showTime},
}

func showTime(f float64) string { return ms(time.Duration(f)) }

// median returns the middle one of the runs.
func median(all []policiesRun, of func(policiesRun) float64) float64 {
	var values []float64
	for _, r := range all {
		values = append(values, of(r))
	}
	slices.Sort(values)
	return values[len(values)/2]
}

func printPolicies(w io.Writer, p policiesPlan, all []policiesRun) {
	fmt.Fprintf(w, "\nPolicies: %d services, %d proxies of 1 class; %d AuthorizationPolicies that select all of them, or none; medians of %d runs each, in turns\n\n",
		p.size.Services, p.streams[0], p.policies, p.runs)
	const line = "  %-52s %14s %14s %8s %9s  %s\n"
	fmt.Fprintf(w, line, "", "with policies", "without", "ratio", "at most", "")
	for _, row := range policiesRows {
		with := median(all, func(r policiesRun) float64 { return row.of(r.with) })
		without := median(all, func(r policiesRun) float64 { return row.of(r.without) })
		fmt.Fprintf(w, line, row.name, row.show(with), row.show(without), times(with/without), times(maxWithPolicies), verdict(with <= maxWithPolicies*without))
	}
	fmt.Fprintln(w)
	fmt.Fprintf(w, line, "", "policy (ECDS)", "route", "ratio", "at most", "")
	for _, row := range []struct {
		name string
		of   func(*result, changed) time.Duration
	}{
		{"a change, p50, holdoff not counted", func(c *result, of changed) time.Duration { return percentile(of.but(c.holdoff), 50) }},
		{"a change, processor time of a round, server", func(_ *result, of changed) time.Duration { return of.each(of.usage.server) }},
	} {
		filter := median(all, func(r policiesRun) float64 { return float64(row.of(r.with, r.with.filter)) })
		route := median(all, func(r policiesRun) float64 { return float64(row.of(r.with, r.with.route)) })
		fmt.Fprintf(w, line, row.name, showTime(filter), showTime(route), times(filter/route), times(maxFilterChange), verdict(filter <= maxFilterChange*route))
	}
}
