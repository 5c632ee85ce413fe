package bisect

import "context"

// verdict is the result of a test of a configuration.
type verdict string

const (
	good verdict = "good"
	bad  verdict = "bad"
	skip verdict = "skip" // the test cannot tell
)

// search finds the first of n items, in order, that has the verdict of the last one. The
// first item has another verdict than the last, and neither is skip. It returns the last item
// known to be like the first, and the first item known to be like the last: if those between
// them were all skipped, they are not neighbors (BIS-2).
func search(ctx context.Context, n int, first verdict, judge func(ctx context.Context, i int) (verdict, error)) (before, after int, err error) {
	before, after = 0, n-1
	skipped := map[int]bool{}
	for {
		i := nearMiddle(before, after, skipped)
		if i < 0 {
			return before, after, nil
		}
		v, err := judge(ctx, i)
		switch {
		case err != nil:
			return before, after, err
		case v == skip:
			skipped[i] = true
		case v == first:
			before = i
		default:
			after = i
		}
	}
}

// nearMiddle returns the item that is nearest to the middle of two and was not skipped; -1:
// there is none between them.
func nearMiddle(before, after int, skipped map[int]bool) int {
	middle := before + (after-before)/2
	for d := 0; middle-d > before || middle+d < after; d++ {
		for _, i := range []int{middle - d, middle + d} {
			if before < i && i < after && !skipped[i] {
				return i
			}
		}
	}
	return -1
}

// steps returns how many tests search needs for n items if it skips none.
func steps(n int) int {
	count := 0
	for between := n - 2; between > 0; between /= 2 {
		count++
	}
	return count
}
