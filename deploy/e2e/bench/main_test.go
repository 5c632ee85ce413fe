package main

import (
	"context"
	"strings"
	"testing"
	"time"
)

// The bench runs and reports all stages. The test does not check the figures.
func TestBench(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out strings.Builder
	if err := run(ctx, &out, 10); err != nil {
		t.Fatalf("%v, after:\n%s", err, out.String())
	}
	for _, s := range spans {
		if n := strings.Count(out.String(), "  "+s.name+" "); n < 2 {
			t.Errorf("%q is reported %d times in:\n%s", s.name, n, out.String())
		}
	}
}

func TestPercentile(t *testing.T) {
	took := make([]time.Duration, 200)
	for i := range took {
		took[len(took)-1-i] = time.Duration(i + 1)
	}
	for p, want := range map[int]time.Duration{1: 2, 50: 100, 99: 198, 100: 200} {
		if got := percentile(took, p); got != want {
			t.Errorf("p%d of 1 to 200 is %d, want %d", p, got, want)
		}
	}
	if got := percentile(took[:1], 50); got != 200 {
		t.Errorf("p50 of one is %d", got)
	}
}
