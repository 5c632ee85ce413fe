package faultsim

import (
	"flag"
	"strings"
	"testing"
)

var (
	seeds  = flag.Int("seeds", 300, "how many schedules TestSim runs")
	start  = flag.Uint64("start", 0, "the seed of the first one")
	faults = flag.String("faults", "all", "what strikes: all, norewind, expire, rewind, session, or names of faults with commas")
	rules  = flag.String("without", "", "rules to take away, with commas")
	show   = flag.Bool("show", false, "print the trace of the schedule -start, and run no other")
)

func faultsNamed(set string) []string {
	if f, ok := faultSets[set]; ok {
		return f
	}
	return strings.Split(set, ",")
}

// TestSim runs schedules, and finds no invariant broken.
func TestSim(t *testing.T) {
	p := plan{faults: faultsNamed(*faults), trace: *show}
	if *rules != "" {
		p.without = strings.Split(*rules, ",")
	}
	n := *seeds
	if *show {
		n = 1
	}
	versions, failed := 0, 0
	for i := range n {
		p.seed = *start + uint64(i)
		s, err := run(p)
		versions += len(s.ever)
		if *show {
			t.Logf("\n%s", s.trace)
		}
		if err != nil {
			failed++
			t.Errorf("seed %d: %v\n\tto see it: go test ./services/internal/faultsim -run '^TestSim$' -v -args -start=%d -faults=%s -show", p.seed, err, p.seed, *faults)
		}
	}
	t.Logf("%d schedules, %d versions, %d schedules broke an invariant", n, versions, failed)
}

// TestSameSeed: a seed is a schedule, byte for byte.
func TestSameSeed(t *testing.T) {
	for set, f := range faultSets {
		for seed := range uint64(4) {
			p := plan{seed: seed, faults: f, trace: true}
			a, err := run(p)
			b, again := run(p)
			if err != nil || again != nil {
				t.Errorf("faults %s, seed %d: %v, %v", set, seed, err, again)
			}
			if a.trace.String() != b.trace.String() {
				t.Errorf("faults %s, seed %d: two runs have two traces", set, seed)
			}
		}
	}
}

// TestWithoutRule: each of these rules is needed, and the simulation notices
// that it is missing.
func TestWithoutRule(t *testing.T) {
	const most = 600 // schedules until one must have failed
	tests := []struct{ rule, faults, invariant string }{
		{"session_fence", "session", "M1 M6"},
		{"stage", "all", "M6"},
		{"atomic", "rewind", "M6"},
		{"partial", "norewind", ""},
		{"overlay_base", "rewind", "M7"},
		{"gate", "all", "M8"},
		{"guard", "crash,op", "G1"},
		{"vfence", "all", "M4"},
		{"cursor", "crash,rewind", "M3"},
		{"msgid_session", "delay", "M1"},
		{"p_order", "session", ""},
	}
	for _, test := range tests {
		t.Run(test.rule, func(t *testing.T) {
			p := plan{faults: faultsNamed(test.faults), without: []string{test.rule}}
			for p.seed = range uint64(most) {
				if _, err := run(p); err != nil {
					t.Logf("seed %d: %v", p.seed, err)
					return
				}
			}
			t.Errorf("%d schedules do not notice that %s is missing", most, test.rule)
		})
	}
}
