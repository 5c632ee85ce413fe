package frontend

import (
	"testing"
	"time"
)

func TestLimiter(t *testing.T) {
	l, now := newLimiter(2), time.Unix(0, 0)
	taken := func(after time.Duration) (n int) {
		for now = now.Add(after); l.allow(now); {
			n++
		}
		return n
	}
	for _, step := range []struct {
		after time.Duration
		want  int
	}{{0, 2}, {0, 0}, {400 * time.Millisecond, 0}, {100 * time.Millisecond, 1}, {time.Hour, 2}, {-time.Minute, 0}} {
		if got := taken(step.after); got != step.want {
			t.Errorf("after %s more: %d, want %d", step.after, got, step.want)
		}
	}
}
