package builder

import (
	"testing"
	"time"
)

func TestHoldoffDue(t *testing.T) {
	h := Holdoff{Endpoints: 2 * time.Millisecond, Quiet: 20 * time.Millisecond, Max: 500 * time.Millisecond, EndpointsMax: 50 * time.Millisecond}
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	ms := func(n int) time.Time { return start.Add(time.Duration(n) * time.Millisecond) }
	for _, c := range []struct {
		name        string
		first, last int
		only, some  bool
		build       time.Duration
		want        int
	}{
		{"a first change waits the quiet period", 0, 0, false, false, 0, 20},
		{"each further change restarts it", 0, 15, false, false, 0, 35},
		{"the maximum ends a stream of changes", 0, 495, false, false, 0, 500},
		{"endpoints alone wait a little", 0, 0, true, true, 0, 2},
		{"endpoints wait at most 50 ms even with other changes", 0, 45, false, true, 0, 50},
		{"at least as long as a build takes", 0, 0, true, true, 9 * time.Millisecond, 9},
		{"slow builds do not exceed the maximum", 0, 0, false, false, time.Second, 500},
	} {
		if got := h.due(ms(c.first), ms(c.last), c.only, c.some, c.build); !got.Equal(ms(c.want)) {
			t.Errorf("%s: due after %v, want %d ms", c.name, got.Sub(start), c.want)
		}
	}
}
