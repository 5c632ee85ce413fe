package main

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A stretch waits for the calls that are underway when it ends, counts them, and cuts
// none off.
func TestStretchWaitsForCallsUnderway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cpu time.Duration
		used := func() (time.Duration, error) { cpu += time.Second; return cpu, nil }
		var begun atomic.Int64
		s, err := stretchOf(t.Context(), 3*time.Second, 4, used, func(ctx context.Context) error {
			begun.Add(1)
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(2 * time.Second):
				return nil
			}
		})
		if want := (stretch{made: 8, took: 4 * time.Second, cpu: time.Second}); err != nil || s != want || begun.Load() != want.made {
			t.Errorf("%+v, %v; %d calls began; want %+v", s, err, begun.Load(), want)
		}
		if got := (rounds{s}).perSecond(); got != 2 {
			t.Errorf("%v calls a second, want 2", got)
		}
	})
}

// A call that fails, or never ends, is an error of the stretch.
func TestStretchReportsFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		used := func() (time.Duration, error) { return 0, nil }
		broken := errors.New("broken")
		if _, err := stretchOf(t.Context(), time.Second, 2, used, func(context.Context) error { return broken }); !errors.Is(err, broken) {
			t.Errorf("a call failed, and the stretch reports %v", err)
		}
		_, err := stretchOf(t.Context(), time.Second, 2, used, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a call never ended, and the stretch reports %v", err)
		}
	})
}
