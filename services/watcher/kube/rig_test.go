package kube

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

	"k8s.io/client-go/rest"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher"
)

// patience limits a wait; no test comes near it.
const patience = 30 * time.Second

// quick returns short limits for tests.
func quick() limits {
	l := defaultLimits()
	l.Patience, l.Probe, l.Down, l.Doubt = 300*time.Millisecond, 250*time.Millisecond, time.Second, 300*time.Millisecond
	l.again, l.rediscover, l.poll = 200*time.Millisecond, 50*time.Millisecond, 200*time.Millisecond
	l.unmirrored = 100 * time.Millisecond
	l.Retry, l.MaxRetry = 20*time.Millisecond, 100*time.Millisecond
	return l
}

// watched runs a watcher as a publisher does and holds the reported objects, as the log
// would.
type watched struct {
	t *testing.T

	mu       sync.Mutex
	objects  map[string]watcher.Object // by "Kind namespace/name"
	kinds    map[string]bool           // of the last listing; nil: no listing yet
	runs     int
	down     error // error of the last run; nil again after a listing
	sets     [][]string
	problems map[string][]problem.Diagnostic
	news     chan struct{} // closed and replaced at each report
}

type option func(*Config, *limits)

// observe runs a watcher until the test ends or the returned function is called.
func observe(t *testing.T, c *rest.Config, options ...option) (*watched, func()) {
	t.Helper()
	w := &watched{t: t, news: make(chan struct{}), objects: map[string]watcher.Object{}, problems: map[string][]problem.Diagnostic{}}
	return w, w.run(c, options...)
}

// run runs another watcher on top of the known objects.
func (w *watched) run(c *rest.Config, options ...option) (stop func()) {
	w.t.Helper()
	cfg := Config{REST: c, Cluster: "east", Logger: slog.New(slog.DiscardHandler)}
	l := quick()
	for _, o := range options {
		o(&cfg, &l)
	}
	watcher, err := New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	watcher.limits = l
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			w.set(func() { w.runs++; clear(w.problems) })
			err := watcher.Run(ctx, w)
			if ctx.Err() == nil && err != nil {
				w.set(func() { w.down = err })
				select {
				case <-time.After(50 * time.Millisecond): // the publisher also pauses between runs
				case <-ctx.Done():
				}
			}
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	w.t.Cleanup(stop)
	return stop
}

func (w *watched) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	close(w.news)
	w.news = make(chan struct{})
}

func name(o watcher.Object) string {
	return strings.TrimSpace(o.Kind + " " + o.Namespace + "/" + o.Name)
}

// List implements watcher.Sink.
func (w *watched) List(_ context.Context, l watcher.Listing) error {
	w.set(func() {
		covered := map[string]bool{}
		for _, k := range l.Kinds {
			covered[k] = true
		}
		maps.DeleteFunc(w.objects, func(_ string, o watcher.Object) bool { return covered[o.Kind] })
		for _, o := range l.Objects {
			if !covered[o.Kind] {
				w.t.Errorf("%s is listed, and its kind is not", name(o))
			}
			w.objects[name(o)] = o
		}
		w.kinds, w.down = covered, nil
	})
	return nil
}

// Change implements watcher.Sink.
func (w *watched) Change(_ context.Context, set []watcher.Object) error {
	w.set(func() {
		var names []string
		for _, o := range set {
			if o.Delete {
				delete(w.objects, name(o))
				names = append(names, "-"+name(o))
			} else {
				w.objects[name(o)] = o
				names = append(names, "+"+name(o))
			}
		}
		w.sets = append(w.sets, names)
	})
	return nil
}

// Problems implements watcher.Sink.
func (w *watched) Problems(origin string, ds []problem.Diagnostic) {
	w.set(func() { w.problems[origin] = ds })
}

// until waits until a condition holds.
func (w *watched) until(what string, is func() bool) {
	w.t.Helper()
	timeout := time.After(patience)
	for {
		w.mu.Lock()
		ok, news := is(), w.news
		w.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-news:
		case <-timeout:
			w.mu.Lock()
			defer w.mu.Unlock()
			w.t.Fatalf("waited in vain for %s; run %d, down: %v, objects %s, changes %v, problems %v", what, w.runs, w.down,
				slices.Sorted(maps.Keys(w.objects)), w.sets, w.problems)
		}
	}
}

func (w *watched) has(names ...string) {
	w.t.Helper()
	w.until(fmt.Sprint(names), func() bool {
		return !slices.ContainsFunc(names, func(n string) bool { _, ok := w.objects[n]; return !ok })
	})
}

func (w *watched) lacks(names ...string) {
	w.t.Helper()
	w.until(fmt.Sprint("the end of ", names), func() bool {
		return !slices.ContainsFunc(names, func(n string) bool { _, ok := w.objects[n]; return ok })
	})
}

func (w *watched) lists(kinds ...string) {
	w.t.Helper()
	w.until(fmt.Sprint("a listing with ", kinds), func() bool {
		return w.kinds != nil && w.down == nil && !slices.ContainsFunc(kinds, func(k string) bool { return !w.kinds[k] })
	})
}

// says waits for a problem with a code, and returns it.
func (w *watched) says(origin, code string) (d problem.Diagnostic) {
	w.t.Helper()
	w.until(origin+" to be "+code, func() bool {
		i := slices.IndexFunc(w.problems[origin], func(d problem.Diagnostic) bool { return d.Code == code })
		if i >= 0 {
			d = w.problems[origin][i]
		}
		return i >= 0
	})
	return d
}

func (w *watched) isWell(origin string) {
	w.t.Helper()
	w.until(origin+" to be well", func() bool { return len(w.problems[origin]) == 0 })
}

// get returns the content of an object.
func (w *watched) get(n string) (watcher.Object, any) {
	w.t.Helper()
	w.has(n)
	w.mu.Lock()
	defer w.mu.Unlock()
	o := w.objects[n]
	k, _ := kind.ByName(o.Kind)
	m, err := k.Decode(o.Value.Type, o.Value.Bytes)
	if err != nil {
		return o, err
	}
	return o, m
}

// ran checks the number of runs.
func (w *watched) ran(n int) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.runs != n {
		w.t.Errorf("%d runs, want %d", w.runs, n)
	}
}

// neverDeleted checks that no deletion was reported.
func (w *watched) neverDeleted() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range slices.Concat(w.sets...) {
		if strings.HasPrefix(n, "-") {
			w.t.Errorf("reported %s; all changes: %v", n, w.sets)
		}
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}
