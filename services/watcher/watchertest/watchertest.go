// Package watchertest is the acceptance suite for implementations of
// watcher.Watcher.
package watchertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher"
)

// Source is a source of named objects that the suite changes. Its functions
// return when the source has changed; the watcher may notice later.
type Source struct {
	// Watcher returns a new watcher of the source.
	Watcher func() watcher.Watcher
	// Put creates or changes an object so that it holds value.
	Put    func(name, value string)
	Delete func(name string)
	// PutAll puts several objects, by name, in one change.
	PutAll func(values map[string]string)
	// Down makes the whole source unreadable. Up makes it readable again, with the
	// same objects.
	Down, Up func()
}

// Run runs the suite, each test on a new, empty source.
func Run(t *testing.T, source func(t *testing.T) Source) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, s Source)
	}{
		{"ListsFirst", listsFirst},
		{"ListsCurrentObjects", listsNow},
		{"ChangesCarryState", changesCarryState},
		{"AtOnce", atOnce},
		{"NothingNew", nothingNew},
		{"EndsWithContext", endsWithContext},
		{"EndsWithSink", endsWithSink},
		{"DownAtStart", downAtStart},
		{"GoesDown", goesDown},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, source(t)) })
	}
}

func listsFirst(t *testing.T, s Source) {
	s.Put("a", "1")
	s.Put("b", "1")
	r := start(t, s.Watcher())
	l := r.list()
	if len(l.Objects) != 2 || l.Partial {
		t.Fatalf("listed %s, partial %t; want two objects", describe(l.Objects), l.Partial)
	}
	for i, o := range l.Objects {
		if o.Delete || o.Kind == "" || o.Name == "" || o.Value.Type == "" || o.Origin == "" || o.Observed.IsZero() {
			t.Errorf("object %d lacks something: %+v", i, o)
		}
	}
}

func listsNow(t *testing.T, s Source) {
	w := s.Watcher()
	s.Put("a", "1")
	r := start(t, w)
	first := r.list()
	r.stop()
	s.Put("a", "2")
	r = start(t, w)
	if again := r.list(); len(first.Objects) != 1 || len(again.Objects) != 1 || same(first.Objects[0], again.Objects[0]) {
		t.Errorf("listed %s, then %s; want the object with another content", describe(first.Objects), describe(again.Objects))
	}
}

func changesCarryState(t *testing.T, s Source) {
	s.Put("a", "1")
	r := start(t, s.Watcher())
	was := r.list().Objects[0]
	s.Put("a", "2")
	changed := r.change(1)[0]
	if changed.Delete || changed.Name != was.Name || same(changed, was) {
		t.Errorf("changed to %s, was %s", describe([]watcher.Object{changed}), describe([]watcher.Object{was}))
	}
	s.Put("a", "1")
	if back := r.change(1)[0]; !same(back, was) {
		t.Errorf("changed back to %+v, was %+v", back, was)
	}
	s.Put("b", "1")
	if made := r.change(1)[0]; made.Delete || made.Name == was.Name {
		t.Errorf("made %s", describe([]watcher.Object{made}))
	}
	s.Delete("a")
	gone := r.change(1)[0]
	if !gone.Delete || gone.Kind != was.Kind || gone.Namespace != was.Namespace || gone.Name != was.Name || gone.Value.Type != "" {
		t.Errorf("deleted %+v, was %+v", gone, was)
	}
}

func atOnce(t *testing.T, s Source) {
	r := start(t, s.Watcher())
	r.list()
	values := map[string]string{}
	for i := range 20 {
		values[fmt.Sprint("n", i)] = "1"
	}
	s.PutAll(values)
	r.change(20)
}

func nothingNew(t *testing.T, s Source) {
	s.Put("a", "1")
	r := start(t, s.Watcher())
	was := r.list().Objects[0]
	s.Put("a", "1")
	s.Put("b", "1")
	if set := r.change(1); set[0].Name == was.Name {
		t.Errorf("the watcher reported an unchanged object: %s", describe(set))
	}
}

func endsWithContext(t *testing.T, s Source) {
	r := start(t, s.Watcher())
	r.list()
	r.stop()
}

func endsWithSink(t *testing.T, s Source) {
	over := errors.New("the session is over")
	if err := s.Watcher().Run(t.Context(), &sink{list: func(watcher.Listing) error { return over }}); !errors.Is(err, over) {
		t.Errorf("Run returned %v when List failed", err)
	}
	err := s.Watcher().Run(t.Context(), &sink{
		list:   func(watcher.Listing) error { s.Put("a", "1"); return nil },
		change: func([]watcher.Object) error { return over },
	})
	if !errors.Is(err, over) {
		t.Errorf("Run returned %v when Change failed", err)
	}
}

func downAtStart(t *testing.T, s Source) {
	s.Put("a", "1")
	s.Down()
	r := start(t, s.Watcher())
	r.fails()
	s.Up()
	r = start(t, s.Watcher())
	if l := r.list(); len(l.Objects) != 1 || l.Partial {
		t.Errorf("listed %s, partial %t", describe(l.Objects), l.Partial)
	}
}

// goesDown checks that an unreadable source does not delete its objects.
func goesDown(t *testing.T, s Source) {
	for i := range 10 {
		s.Put(fmt.Sprint("n", i), "1")
	}
	r := start(t, s.Watcher())
	r.list()
	s.Down()
	r.fails()
}

// runner runs a watcher until the test ends.
type runner struct {
	t       *testing.T
	cancel  context.CancelFunc
	reports chan any // watcher.Listing or []watcher.Object
	ended   chan error
}

func start(t *testing.T, w watcher.Watcher) *runner {
	ctx, cancel := context.WithCancel(t.Context())
	r := &runner{t: t, cancel: cancel, reports: make(chan any), ended: make(chan error, 1)}
	report := func(what any) error {
		select {
		case r.reports <- what:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.ended <- w.Run(ctx, &sink{
			list:   func(l watcher.Listing) error { return report(l) },
			change: func(set []watcher.Object) error { return report(set) },
		})
	}()
	t.Cleanup(func() { cancel(); <-done })
	return r
}

func (r *runner) stop() {
	r.t.Helper()
	r.cancel()
	if err := <-r.ended; !errors.Is(err, context.Canceled) {
		r.t.Errorf("Run returned %v after its context was done", err)
	}
}

// list returns the listing, which must be the first report.
func (r *runner) list() watcher.Listing {
	r.t.Helper()
	select {
	case what := <-r.reports:
		if l, ok := what.(watcher.Listing); ok {
			return l
		}
		r.t.Fatalf("the watcher reported %v before it listed", what)
	case err := <-r.ended:
		r.t.Fatalf("Run returned %v before it listed", err)
	}
	return watcher.Listing{}
}

// change returns the next change set, which must have n objects.
func (r *runner) change(n int) []watcher.Object {
	r.t.Helper()
	select {
	case what := <-r.reports:
		set, ok := what.([]watcher.Object)
		if !ok {
			r.t.Fatalf("the watcher listed a second time")
		}
		if len(set) != n {
			r.t.Fatalf("a change of %d objects, want %d: %s", len(set), n, describe(set))
		}
		return set
	case err := <-r.ended:
		r.t.Fatalf("Run returned %v", err)
	}
	return nil
}

// fails waits until the run ends with an error that is not its context's. Until
// then the watcher must report nothing.
func (r *runner) fails() {
	r.t.Helper()
	select {
	case what := <-r.reports:
		r.t.Fatalf("the source is down, and the watcher reported %v", what)
	case err := <-r.ended:
		if err == nil || errors.Is(err, context.Canceled) {
			r.t.Fatalf("the source is down, and Run returned %v", err)
		}
	}
}

// sink implements watcher.Sink with functions.
type sink struct {
	list   func(watcher.Listing) error
	change func([]watcher.Object) error
}

func (s *sink) List(_ context.Context, l watcher.Listing) error      { return s.list(l) }
func (s *sink) Change(_ context.Context, set []watcher.Object) error { return s.change(set) }
func (s *sink) Problems(string, []problem.Diagnostic)                {}

func same(a, b watcher.Object) bool {
	return a.Kind == b.Kind && a.Namespace == b.Namespace && a.Name == b.Name &&
		a.Value.Type == b.Value.Type && slices.Equal(a.Value.Bytes, b.Value.Bytes) && a.Value.Created.Equal(b.Value.Created)
}

func describe(set []watcher.Object) string {
	var names []string
	for _, o := range set {
		op := "put"
		if o.Delete {
			op = "delete"
		}
		names = append(names, fmt.Sprintf("%s %s %s/%s", op, o.Kind, o.Namespace, o.Name))
	}
	return fmt.Sprint(names)
}
