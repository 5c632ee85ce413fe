package faultsim

import (
	"cmp"
	"errors"
	"flag"
	"slices"
	"strings"
	"testing"
)

var (
	seeds  = flag.Int("seeds", 300, "how many schedules TestSim runs")
	start  = flag.Uint64("start", 0, "the seed of the first schedule")
	faults = flag.String("faults", "", "the faults to inject: the name of a set, or names of faults, separated by commas; by default the sets take turns")
	rules  = flag.String("without", "", "rules to leave out, separated by commas")
	show   = flag.Bool("show", false, "print the trace of the schedule -start, and run only this one")
)

// turns are the sets of faults that schedules take in turn.
var turns = []string{"all", "norewind", "expire", "rewind", "session", "retain", "kinds"}

func faultsNamed(set string) []string {
	if f, ok := faultSets[set]; ok {
		return f
	}
	return strings.Split(set, ",")
}

// TestSim runs schedules and fails if one breaks an invariant.
func TestSim(t *testing.T) {
	simulate(t, *seeds, func(seed uint64) string { return cmp.Or(*faults, turns[seed%uint64(len(turns))]) })
}

// simulate runs n schedules with the faults that setOf names for a seed.
func simulate(t *testing.T, n int, setOf func(seed uint64) string) {
	t.Helper()
	p := plan{trace: *show}
	if *rules != "" {
		p.without = strings.Split(*rules, ",")
	}
	if *show {
		n = 1
	}
	versions, failed := 0, 0
	for i := range n {
		p.seed = *start + uint64(i)
		set := setOf(p.seed)
		p.faults = faultsNamed(set)
		s, err := run(p)
		versions += len(s.ever)
		if *show {
			t.Logf("\n%s", s.trace)
		}
		if err != nil {
			failed++
			t.Errorf("seed %d, faults %s: %v\n\tto see it: go test ./services/suite/faultsim -run '^TestSim$' -v -args -start=%d -faults=%s -show", p.seed, set, err, p.seed, set)
		}
	}
	t.Logf("%d schedules, %d versions, %d schedules broke an invariant", n, versions, failed)
}

// TestSameSeed checks that two runs of a seed have the same trace, byte for byte.
func TestSameSeed(t *testing.T) {
	for _, set := range append(slices.Clone(turns), "forge", "sign") {
		for seed := range uint64(4) {
			p := plan{seed: seed, faults: faultSets[set], trace: true}
			a, err := run(p)
			b, again := run(p)
			if err != nil || again != nil {
				t.Errorf("faults %s, seed %d: %v, %v", set, seed, err, again)
			}
			if a.trace.String() != b.trace.String() {
				t.Errorf("faults %s, seed %d: two runs have different traces", set, seed)
			}
		}
	}
}

// TestWithoutRule checks that the simulation notices that a rule is missing.
func TestWithoutRule(t *testing.T) {
	testWithout(t, []needed{
		{"guard", "crash,op"},
		{"vfence", "all"},
		{"cursor", "crash,rewind"},
		{"msgid_session", "delay"},
		{"refuse", "forge"},
		{"sign", "sign"},
	})
}

// needed is a rule with the faults under which the simulation notices its absence.
type needed struct{ rule, faults string }

func testWithout(t *testing.T, tests []needed) {
	t.Helper()
	const most = 600 // at least one of these schedules must fail
	for _, test := range tests {
		t.Run(test.rule, func(t *testing.T) {
			p := plan{faults: faultsNamed(test.faults), without: []string{test.rule}}
			for p.seed = range uint64(most) {
				_, err := run(p)
				if broken := (violation{}); errors.As(err, &broken) {
					t.Logf("seed %d: %v", p.seed, err)
					return
				}
				if err != nil {
					t.Fatalf("seed %d: %v", p.seed, err)
				}
			}
			t.Errorf("%d schedules do not notice that %s is missing", most, test.rule)
		})
	}
}
