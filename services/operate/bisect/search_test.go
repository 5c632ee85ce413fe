package bisect

import (
	"context"
	"math/bits"
	"testing"
)

// A search finds the first change in as many tests as halving takes, whichever it is (BIS-1).
func TestSearch(t *testing.T) {
	for n := 2; n < 200; n++ {
		for first := 1; first < n; first++ {
			tests := 0
			before, after, err := search(t.Context(), n, good, func(_ context.Context, i int) (verdict, error) {
				if tests++; i < first {
					return good, nil
				}
				return bad, nil
			})
			if err != nil || before != first-1 || after != first {
				t.Fatalf("of %d, with the change at %d: between %d and %d, %v", n, first, before, after, err)
			}
			if most := bits.Len(uint(n - 1)); tests > most {
				t.Fatalf("of %d, with the change at %d: %d tests, want %d", n, first, tests, most)
			}
		}
	}
}

// What cannot be tested is left out; the answer is exact unless it touches the change (BIS-2).
func TestSearchSkips(t *testing.T) {
	const n = 40
	for first := 1; first < n; first++ {
		for from := 1; from < n-1; from++ {
			for to := from; to < n-1; to++ {
				before, after, err := search(t.Context(), n, bad, func(_ context.Context, i int) (verdict, error) {
					switch {
					case from <= i && i <= to:
						return skip, nil
					case i < first:
						return bad, nil
					}
					return good, nil
				})
				wantBefore, wantAfter := first-1, first
				if from <= wantBefore && wantBefore <= to {
					wantBefore = from - 1
				}
				if from <= wantAfter && wantAfter <= to {
					wantAfter = to + 1
				}
				if err != nil || before != wantBefore || after != wantAfter {
					t.Fatalf("change at %d, %d to %d skipped: between %d and %d, want %d and %d", first, from, to, before, after, wantBefore, wantAfter)
				}
			}
		}
	}
}
