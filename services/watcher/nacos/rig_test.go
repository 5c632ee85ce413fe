package nacos

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher"
)

// quick are limits for tests, in the order of the real ones.
func quick() limits {
	return limits{
		down: 2 * time.Second, deadline: 800 * time.Millisecond, quiet: 400 * time.Millisecond, sweep: 400 * time.Millisecond,
		hold: time.Second, confirm: 100 * time.Millisecond, tick: 20 * time.Millisecond, redial: 20 * time.Millisecond,
	}
}

// world is a sink that applies what it gets, as a log does.
type world struct {
	mu       sync.Mutex
	changed  chan struct{} // closed by the next change
	objects  map[string]proto.Message
	lists    []watcher.Listing
	ended    []error // how runs ended
	history  map[string][]int
	problems map[string][]problem.Diagnostic
}

func newWorld() *world {
	return &world{changed: make(chan struct{}), objects: map[string]proto.Message{}, history: map[string][]int{}, problems: map[string][]problem.Diagnostic{}}
}

// follow runs a watcher as a publisher does, until the test ends.
func follow(t *testing.T, cfg Config, l limits) *world {
	t.Helper()
	cfg.Logger = slog.New(slog.DiscardHandler)
	if cfg.List == 0 {
		cfg.List = 50 * time.Millisecond
	}
	w, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.limits = l
	o := newWorld()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			err := w.Run(ctx, o)
			o.note(func() { o.ended = append(o.ended, err) })
		}
	}()
	return o
}

// note changes the world and wakes what waits for it.
func (o *world) note(change func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change()
	close(o.changed)
	o.changed = make(chan struct{})
}

func (o *world) List(_ context.Context, l watcher.Listing) error {
	o.note(func() {
		o.lists = append(o.lists, l)
		if !l.Partial {
			clear(o.objects)
		}
		o.apply(l.Objects)
	})
	return nil
}

func (o *world) Change(_ context.Context, set []watcher.Object) error {
	o.note(func() { o.apply(set) })
	return nil
}

func (o *world) Problems(origin string, ds []problem.Diagnostic) {
	o.note(func() { o.problems[origin] = ds })
}

func (o *world) apply(set []watcher.Object) {
	for _, one := range set {
		key := one.Kind + " " + one.Name
		if one.Delete {
			delete(o.objects, key)
			continue
		}
		k, _ := kind.ByName(one.Kind)
		m, err := k.Decode(one.Value.Type, one.Value.Bytes)
		if err != nil {
			panic(err)
		}
		o.objects[key] = m
	}
	for _, name := range o.services() {
		o.history[name] = append(o.history[name], len(o.endpoints(name)))
	}
}

func (o *world) services() []string {
	var all []string
	for key := range o.objects {
		if name, is := strings.CutPrefix(key, "Service "); is {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

// endpoints returns the addresses of a service, with their health unless they are healthy.
func (o *world) endpoints(service string) []string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(o.objects)) {
		e, is := o.objects[key].(*registryv1.Endpoints)
		if !is || e.GetService() != service {
			continue
		}
		for _, one := range e.GetEndpoints() {
			text := one.GetAddresses()[0]
			if h := one.GetHealth(); h != registryv1.Health_HEALTH_HEALTHY {
				text += " " + strings.ToLower(strings.TrimPrefix(h.String(), "HEALTH_"))
			}
			all = append(all, text)
		}
	}
	slices.Sort(all)
	return all
}

// told returns the reasons of all problems.
func (o *world) told() string {
	var all []string
	for _, ds := range o.problems {
		for _, d := range ds {
			all = append(all, d.Reason)
		}
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

// errs returns how runs ended that ended with an error.
func (o *world) errs() string {
	return fmt.Sprint(errors.Join(o.ended...))
}

// await waits until f returns the wanted text.
func (o *world) await(t *testing.T, what, want string, f func() string) {
	t.Helper()
	o.within(t, 30*time.Second, what, want, f)
}

// within is await that waits for another time at most.
func (o *world) within(t *testing.T, most time.Duration, what, want string, f func() string) {
	t.Helper()
	limit := time.NewTimer(most)
	defer limit.Stop()
	poll := time.NewTicker(20 * time.Millisecond) // for what is not in the world
	defer poll.Stop()
	for {
		o.mu.Lock()
		got, changed := f(), o.changed
		o.mu.Unlock()
		if got == want {
			return
		}
		select {
		case <-changed:
		case <-poll.C:
		case <-limit.C:
			o.mu.Lock()
			defer o.mu.Unlock()
			t.Fatalf("%s: %q, want %q; problems: %s; runs ended with %s", what, got, want, o.told(), o.errs())
		}
	}
}

// awaitEndpoints waits until a service has these endpoints.
func (o *world) awaitEndpoints(t *testing.T, service string, want ...string) {
	t.Helper()
	o.await(t, "endpoints of "+service, strings.Join(want, ", "), func() string { return strings.Join(o.endpoints(service), ", ") })
}

func (o *world) awaitServices(t *testing.T, want ...string) {
	t.Helper()
	o.await(t, "services", strings.Join(want, ", "), func() string { return strings.Join(o.services(), ", ") })
}

// awaitTrue waits until f is true.
func (o *world) awaitTrue(t *testing.T, what string, f func() bool) {
	t.Helper()
	o.await(t, what, "true", func() string { return fmt.Sprint(f()) })
}
