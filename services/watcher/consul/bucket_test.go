package consul

import (
	"testing"
	"time"
)

// CON-4: two answers at once, one each 500 ms, one each 15 s after a minute of that, and
// at full speed again after a quiet time.
func TestCON4Bucket(t *testing.T) {
	var b bucket
	now := time.Now()
	at := func() time.Duration { wait := b.take(now); now = now.Add(wait); return wait }
	for i, want := range []time.Duration{0, 0, each, each, each} {
		if got := at(); got != want {
			t.Errorf("request %d waits %s, want %s", i, got, want)
		}
	}
	busy := now
	for now.Sub(busy) < slowAfter {
		at()
	}
	if got := at(); got < 14*time.Second || got > eachSlow {
		t.Errorf("after a minute at the limit it waits %s", got)
	}
	now = now.Add(time.Minute)
	for i, want := range []time.Duration{0, 0, each} {
		if got := at(); got != want {
			t.Errorf("after a quiet minute request %d waits %s, want %s", i, got, want)
		}
	}
}

// CON-7: backoff grows from 250 ms to 30 s.
func TestCON7Pause(t *testing.T) {
	for failures, want := range map[int]time.Duration{1: minPause, 2: 2 * minPause, 5: 16 * minPause, 8: maxPause, 1000: maxPause} {
		if d := pause(failures); d < want*3/4 || d > want*5/4 {
			t.Errorf("after %d failures it waits %s, want some %s", failures, d, want)
		}
	}
}
