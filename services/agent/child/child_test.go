package child_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"meshlog.dev/services/agent/child"
)

// fake is an Envoy that runs until it is told to end.
type fake struct {
	args []string
	end  chan error
}

func (*fake) PID() int { return 1 }
func (f *fake) Signal(os.Signal) error {
	select {
	case f.end <- nil:
	default:
	}
	return nil
}
func (f *fake) Wait() error { return <-f.end }

type envoys struct {
	mu    sync.Mutex
	all   []*fake
	times []time.Time
	crash bool // each at once
}

func (e *envoys) start(c child.Command) (child.Process, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f := &fake{c.Args, make(chan error, 1)}
	if e.crash {
		f.end <- errors.New("crashed")
	}
	e.all, e.times = append(e.all, f), append(e.times, time.Now())
	return f, nil
}

func run(t *testing.T, e *envoys) (*child.Supervisor, <-chan error, func()) {
	s := child.New(child.Config{Dir: t.TempDir(), Command: child.Command{UID: -1, GID: -1}, Drain: 45 * time.Second, Starter: e.start, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	return s, ended, cancel
}

// AGT-2: an Envoy that crashes at once is started again after growing pauses, and ends the
// agent when its budget is used.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &envoys{crash: true}
		s, ended, cancel := run(t, e)
		defer cancel()
		s.Want(t.Context(), []byte("{}"))
		if err := <-ended; err == nil || !strings.Contains(err.Error(), "11 times in a row") {
			t.Errorf("ended with %v", err)
		}
		if n := len(e.all); n != 11 {
			t.Errorf("%d starts", n)
		}
		if first, last := e.times[1].Sub(e.times[0]), e.times[10].Sub(e.times[9]); first != 200*time.Millisecond || last != 10*time.Second {
			t.Errorf("pauses from %s to %s", first, last)
		}
	})
}

// AGT-2, MTLS-11: a new bootstrap is a hot restart; a third one waits until the first Envoy
// has ended. A crash of the last one is no hot restart.
func TestHotRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := new(envoys)
		s, ended, cancel := run(t, e)
		for _, b := range []string{"1", "1", "2", "3"} {
			s.Want(t.Context(), []byte(b))
			synctest.Wait()
		}
		if len(e.all) != 2 {
			t.Fatalf("%d Envoys", len(e.all))
		}
		for i, want := range [][]string{
			{"--restart-epoch", "0", "--drain-time-s", "45", "--parent-shutdown-time-s", "60", "--use-dynamic-base-id"},
			{"--restart-epoch", "1", "--drain-time-s", "45"},
		} {
			for _, arg := range want {
				if !slices.Contains(e.all[i].args, arg) {
					t.Errorf("Envoy %d has no %s: %v", i, arg, e.all[i].args)
				}
			}
		}
		e.all[0].end <- nil
		synctest.Wait()
		if len(e.all) != 3 || !slices.Contains(e.all[2].args, "2") {
			t.Fatalf("after the first has ended: %d Envoys", len(e.all))
		}
		e.all[1].end <- nil
		e.all[2].end <- errors.New("killed")
		<-time.After(time.Second)
		synctest.Wait()
		if len(e.all) != 4 || !slices.Contains(e.all[3].args, "--use-dynamic-base-id") {
			t.Errorf("after a crash: %d Envoys", len(e.all))
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// KEY-12: connections end by a hot restart with the same bootstrap. One that is asked for
// during another waits for it, and the time says so.
func TestEndConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := new(envoys)
		s, ended, cancel := run(t, e)
		if _, err := s.EndConnections(); err == nil || err.Error() != "no Envoy runs" {
			t.Errorf("without an Envoy: %v", err)
		}
		s.Want(t.Context(), []byte("1"))
		synctest.Wait()
		for i, want := range []time.Duration{time.Minute, 2 * time.Minute, 2 * time.Minute} {
			until, err := s.EndConnections()
			if took := time.Until(until); err != nil || took != want {
				t.Errorf("%d: connections end in %s, %v; want %s", i, took, err, want)
			}
			synctest.Wait()
			if len(e.all) != 2 {
				t.Fatalf("%d: %d Envoys", i, len(e.all))
			}
		}
		e.all[0].end <- nil
		synctest.Wait()
		e.all[1].end <- nil
		synctest.Wait()
		if len(e.all) != 3 {
			t.Errorf("%d Envoys, want one for the orders that came together", len(e.all))
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}
