// Package watchertest is the acceptance suite for implementations of
// watcher.Watcher.
package watchertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

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
	r.Rest()
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
	ctx, cancel := context.WithCancel(t.Context())
	err := s.Watcher().Run(ctx, &sink{list: func() error { cancel(); return nil }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Run returned %v after its context was done while it listed", err)
	}

	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	listed, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- s.Watcher().Run(ctx, &sink{list: func() error { close(listed); return nil }})
	}()
	select {
	case <-listed:
	case err := <-ended:
		t.Fatalf("Run returned %v before it listed", err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Run returned %v after its context was done while it waited for changes", err)
	}
}

func endsWithSink(t *testing.T, s Source) {
	over := errors.New("the session is over")
	if err := s.Watcher().Run(t.Context(), &sink{list: func() error { return over }}); !errors.Is(err, over) {
		t.Errorf("Run returned %v when List failed", err)
	}
	err := s.Watcher().Run(t.Context(), &sink{
		list:   func() error { s.Put("a", "1"); return nil },
		change: func() error { return over },
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

// runner runs a watcher as a publisher does, until the test ends.
type runner struct {
	t *testing.T
	watcher.Inbox
}

func start(t *testing.T, w watcher.Watcher) *runner {
	r := &runner{t, watcher.NewInbox(w, nil)}
	r.Watch(t.Context())
	t.Cleanup(r.Rest)
	return r
}

// next returns the next input that is not a report of problems.
func (r *runner) next() watcher.Input {
	r.t.Helper()
	for {
		in, err := r.Wait(r.t.Context(), time.Now().Add(time.Hour))
		if err != nil {
			r.t.Fatal(err)
		}
		if _, is := in.(watcher.Reported); !is {
			return in
		}
	}
}

// list returns the listing, which must be the first report.
func (r *runner) list() watcher.Listing {
	r.t.Helper()
	in := r.next()
	l, ok := in.(watcher.Listed)
	if !ok {
		r.t.Fatalf("%+v came before the listing", in)
	}
	return l.Listing
}

// change returns the next change set, which must have n objects.
func (r *runner) change(n int) []watcher.Object {
	r.t.Helper()
	in := r.next()
	c, ok := in.(watcher.Changed)
	if !ok {
		r.t.Fatalf("%+v came instead of a change", in)
	}
	if len(c.Set) != n {
		r.t.Fatalf("a change of %d objects, want %d: %s", len(c.Set), n, describe(c.Set))
	}
	return c.Set
}

// fails waits until the run ends with an error that is not its context's. Until
// then the watcher must report nothing.
func (r *runner) fails() {
	r.t.Helper()
	in := r.next()
	if end, ok := in.(watcher.Ended); !ok || end.Err == nil || errors.Is(end.Err, context.Canceled) {
		r.t.Fatalf("the source is down, and %+v came", in)
	}
}

// sink calls functions that may fail.
type sink struct{ list, change func() error }

func (s *sink) List(context.Context, watcher.Listing) error    { return s.list() }
func (s *sink) Change(context.Context, []watcher.Object) error { return s.change() }
func (s *sink) Problems(string, []problem.Diagnostic)          {}

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
