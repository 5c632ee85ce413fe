package faultsim

import (
	"flag"
	"strings"
	"testing"
)

var (
	seeds   = flag.Int("seeds", 300, "how many schedules TestSim runs")
	start   = flag.Uint64("start", 0, "the first seed")
	show    = flag.Bool("show", false, "print the trace of seed -start alone")
	faults  = flag.String("faults", "all", "a set of faults (all, norewind, expire, rewind, session), or names with commas")
	without = flag.String("without", "", "rules to take away, with commas")
)

func faultsNamed(set string) []string {
	if f, ok := faultSets[set]; ok {
		return f
	}
	return strings.Split(set, ",")
}

func TestSim(t *testing.T) {
	p := plan{faults: faultsNamed(*faults), trace: *show}
	if *without != "" {
		p.without = strings.Split(*without, ",")
	}
	n := *seeds
	if *show {
		n = 1
	}
	failed, published, steps := 0, 0, 0
	for i := range n {
		p.seed = *start + uint64(i)
		s, err := run(p)
		published += len(s.ever)
		for _, x := range s.procs {
			steps += x.paused
		}
		if *show {
			t.Logf("\n%s", s.trace)
		}
		if err != nil {
			failed++
			t.Errorf("seed %d: %v", p.seed, err)
		}
	}
	t.Logf("%d of %d schedules failed; %d versions %d steps", failed, n, published, steps)
}
