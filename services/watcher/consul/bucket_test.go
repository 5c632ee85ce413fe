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

// CON-3: the first poll of a service waits for a part of the wait, so that polls spread over
// it; later ones wait for all of it, and have a sixteenth and 10 s more to answer.
func TestCON3Wait(t *testing.T) {
	r := &run{Watcher: &Watcher{settings: Settings{Wait: 10 * time.Minute}}}
	seen := map[time.Duration]bool{}
	for range 100 {
		first := r.wait(true)
		if first < time.Minute || first >= 10*time.Minute {
			t.Fatalf("the first poll waits %s", first)
		}
		seen[first] = true
	}
	if len(seen) < 50 {
		t.Errorf("100 first polls have %d different waits", len(seen))
	}
	if got := r.wait(false); got != 10*time.Minute {
		t.Errorf("a later poll waits %s", got)
	}
	if got, want := deadline(10*time.Minute), 10*time.Minute+37500*time.Millisecond+10*time.Second; got != want {
		t.Errorf("an answer must be there after %s, want %s", got, want)
	}
}
