package watcher_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/events"
	"meshlog.dev/services/watcher"
)

// gate is a log that refuses objects of the kind D while it is closed.
type gate struct {
	watcher.Log
	closed atomic.Bool
	silent bool // it says nothing about permissions
}

var errDenied = errors.New("permissions violation")

func (g *gate) wrap(log watcher.Log) watcher.Log { g.Log = log; return g }

func (g *gate) Permits(context.Context) (func(events.Subject) bool, error) {
	if g.silent {
		return nil, errors.New("no answer")
	}
	closed := g.closed.Load()
	return func(s events.Subject) bool { return !closed || !strings.Contains(string(s), ".D.") }, nil
}

func (g *gate) check(all []events.Event) error {
	for _, e := range all {
		if o, ok := e.Body.(*events.Object); ok && o.Key.Kind == "D" && g.closed.Load() {
			return errDenied
		}
	}
	return nil
}

func (g *gate) Append(ctx context.Context, batch []events.Event, fence events.Fence) (events.Ack, error) {
	if err := g.check(batch); err != nil {
		return events.Ack{}, err
	}
	return g.Log.Append(ctx, batch, fence)
}

func (g *gate) AppendEach(ctx context.Context, all []events.Event) error {
	for i := range all {
		if err := g.check(all[i : i+1]); err != nil {
			return err
		}
		if err := g.Log.AppendEach(ctx, all[i:i+1]); err != nil {
			return err
		}
	}
	return nil
}

// denied returns the reasons of the objects that the bus refuses.
func (r *rig) denied() (reasons []string) {
	for _, d := range r.state().Diagnostics {
		if d.Code == "denied" {
			reasons = append(reasons, d.Key.Kind+"/"+d.Key.Name+": "+d.Reason)
		}
	}
	return reasons
}

func (r *rig) wantDenied(want ...string) {
	r.t.Helper()
	if diff := cmp.Diff(want, r.denied()); diff != "" {
		r.t.Errorf("denied (-want +got):\n%s", diff)
	}
}

const deniedD = "the watcher's key may not publish to file.default.D._ on the bus"

// ACL-3: an object that the bus refuses is reported, and does not hold the others up.
// The listing without it removes nothing, since the log may have the object.
func TestDeniedObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{}
		g.closed.Store(true)
		s := newSource(map[string]string{"x": "1", "D/y": "1", "D/z": "1"})
		r := start(t, s, options{faulty: g.wrap, permissions: g})
		r.want(0, "begin a-1 by a", "put x=1 pseq 1 low 1", "alive a-1 low 2 listed 1024 partial")
		r.wantDenied("D/y: " + deniedD + "; 2 objects wait for it")
		s.change("x=2", "D/y=2")
		r.want(3, "put x=2 pseq 2 low 2")
		s.change("D/y=")
		r.wantDenied("D/z: " + deniedD)
		r.want(4)
		s.change("D/z=") // no refused object is left: a whole listing removes what the log has of them
		r.want(4, "begin a-2 by a", "put x=2 pseq 1 low 1", "alive a-2 low 2 listed 1024")
		r.wantDenied()
		_ = r.stop()
	})
}

// If the bus permits less while the watcher runs, the change that it refuses does not
// hold the others up either. Once the bus permits it again it is published, without a
// restart.
func TestDeniedWhileRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{}
		s := newSource(map[string]string{"x": "1", "D/y": "1"})
		r := start(t, s, options{faulty: g.wrap, permissions: g})
		r.want(0, "begin a-1 by a", "put y=1 pseq 1 low 1", "put x=1 pseq 2 low 1", "alive a-1 low 3 listed 1024")
		g.closed.Store(true)
		s.change("D/y=2", "x=2")
		pass(time.Second)
		r.want(4, "begin a-2 by a", "put x=2 pseq 1 low 1", "alive a-2 low 2 listed 1024 partial")
		r.wantDenied("D/y: " + deniedD)
		g.closed.Store(false)
		pass(11 * time.Second) // a heartbeat
		r.want(7, "alive a-2 low 2 listed 0 partial",
			"begin a-3 by a", "put y=2 pseq 1 low 1", "put x=2 pseq 2 low 1", "alive a-3 low 3 listed 1024")
		r.wantDenied()
		if got := r.lastAlive().Digest; got != s.digest() {
			t.Errorf("digest %x, want %x", got, s.digest())
		}
		_ = r.stop()
	})
}

// An object that the log has already needs no permission: not to stay, not to return to
// the published value, and not to be removed.
func TestDeniedOfPublishedObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{}
		g.closed.Store(true)
		s := newSource(map[string]string{"x": "1", "D/y": "1", "D/z": "1"})
		r := start(t, s, options{faulty: g.wrap, permissions: g, leader: leader{s.digests()}})
		r.want(0, "begin a-1 by a", "alive a-1 low 1 listed 0")
		r.wantDenied()
		published := s.digest()
		s.change("D/y=2", "x=2")
		synctest.Wait()
		s.change("x=1")
		r.want(2, "put x=2 pseq 1 low 1", "put x=1 pseq 2 low 2")
		r.wantDenied("D/y: " + deniedD)
		pass(10 * time.Second)
		if a := r.lastAlive(); a.Digest != published || a.Partial {
			t.Errorf("the heartbeat has digest %x (partial: %t), want %x, of what the log has", a.Digest, a.Partial, published)
		}
		s.change("D/y=1")
		r.wantDenied()
		s.change("D/z=")
		r.want(5, "begin a-2 by a", "alive a-2 low 1 listed 1")
		if got := r.lastAlive(); got.Digest != s.digest() {
			t.Errorf("digest %x, want %x", got.Digest, s.digest())
		}
		_ = r.stop()
	})
}

// Without an answer about permissions, as with an older auth.conf, a refused append is
// repeated, and the state says why.
func TestDeniedWithoutPermissions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{silent: true}
		g.closed.Store(true)
		s := newSource(map[string]string{"D/y": "1"})
		r := start(t, s, options{faulty: g.wrap, permissions: g})
		r.want(0, "begin a-1 by a")
		if ds := r.state().Diagnostics; len(ds) != 1 || ds[0].Reason != errDenied.Error() {
			t.Errorf("diagnostics: %+v", ds)
		}
		g.closed.Store(false)
		pass(10 * time.Second)
		r.want(1, "put y=1 pseq 1 low 1", "alive a-1 low 2 listed 1024")
		_ = r.stop()
	})
}
