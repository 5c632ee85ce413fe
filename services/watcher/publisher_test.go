package watcher_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/events"
	"meshlog.dev/events/memlog"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/tracing"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher"
)

var shard = ident.Shard{Source: "file", Instance: "default"}

// source is a watcher that a test controls. It lists its objects whenever it is run,
// and then runs the functions that the test sends to say.
type source struct {
	say chan func(context.Context, watcher.Sink) error

	mu      sync.Mutex
	objects map[string]string // content by name
	partial bool
	kinds   []string // the kinds that can be read; nil: all
	down    error
	runs    int
}

func newSource(objects map[string]string) *source {
	return &source{objects: objects, say: make(chan func(context.Context, watcher.Sink) error)}
}

func (s *source) Run(ctx context.Context, sink watcher.Sink) error {
	l, err := s.list()
	if err != nil {
		return err
	}
	if err := sink.List(ctx, l); err != nil {
		return err
	}
	for {
		select {
		case f := <-s.say:
			if err := f(ctx, sink); !errors.Is(err, errGoOn) {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *source) list() (watcher.Listing, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs++
	l := watcher.Listing{Partial: s.partial, Kinds: s.kinds}
	for name, content := range s.objects {
		l.Objects = append(l.Objects, object(name, content))
	}
	return l, s.down
}

// set changes the source without reporting the change.
func (s *source) set(f func(s *source)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

var errGoOn = errors.New("go on")

// object returns an object of kind K, or of the kind in a name of the form Kind/name.
func object(name, content string) watcher.Object {
	kind, rest, ok := strings.Cut(name, "/")
	if !ok {
		kind, rest = "K", name
	}
	return watcher.Object{
		Kind: kind, Name: rest, Delete: content == "", Origin: "f.yaml:1", Actor: "file",
		Value: ident.Value{Type: "t", Bytes: []byte(content)},
	}
}

// change reports pairs of the form name=content in one change set. An empty content
// deletes the object.
func (s *source) change(pairs ...string) {
	var set []watcher.Object
	for _, p := range pairs {
		name, content, _ := strings.Cut(p, "=")
		set = append(set, object(name, content))
		s.set(func(s *source) {
			s.objects[name] = content
			if content == "" {
				delete(s.objects, name)
			}
		})
	}
	s.say <- func(ctx context.Context, sink watcher.Sink) error {
		if err := sink.Change(ctx, set); err != nil {
			return err
		}
		return errGoOn
	}
}

// end makes the run return err.
func (s *source) end(err error) {
	s.say <- func(context.Context, watcher.Sink) error { return err }
}

// noLeader never answers; leader returns its digests.
type noLeader struct{}

func (noLeader) Digests(context.Context, ident.Shard, string, events.Kinds) (*events.ShardDigests, error) {
	return nil, errors.New("no answer")
}

type leader struct{ held *events.ShardDigests }

func (l leader) Digests(context.Context, ident.Shard, string, events.Kinds) (*events.ShardDigests, error) {
	return l.held, nil
}

// rig runs one publisher.
type rig struct {
	t        *testing.T
	log      *memlog.Log
	source   *source
	requests chan string
	stop     func() error

	mu   sync.Mutex
	last watcher.State
}

type options struct {
	holder string
	id     string // prefix of its sessions; empty: the holder
	log    *memlog.Log
	faulty func(watcher.Log) watcher.Log
	leader watcher.Leader
	tracer *tracing.Tracer

	identity string

	permissions watcher.Permissions
}

// start runs a publisher in the bubble of a synctest.
func start(t *testing.T, s *source, o options) *rig {
	t.Helper()
	r := &rig{t: t, log: o.log, source: s, requests: make(chan string, 1)}
	if r.log == nil {
		r.log = memlog.New(time.Now)
	}
	if o.holder == "" {
		o.holder = "a"
	}
	if o.id == "" {
		o.id = o.holder
	}
	if o.leader == nil {
		o.leader = noLeader{}
	}
	var log watcher.Log = r.log
	if o.faulty != nil {
		log = o.faulty(log)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- watcher.Run(ctx, watcher.Config{
			Shard: shard, Holder: o.holder, Identity: o.identity, Log: log, Leader: o.leader,
			NewID: func() string { return o.id }, Logger: slog.New(slog.DiscardHandler),
			OnState: func(s watcher.State) { r.mu.Lock(); defer r.mu.Unlock(); r.last = s },
			Watcher: s, ListingRequests: r.requests, Tracer: o.tracer, Permissions: o.permissions,
		})
	}()
	r.stop = func() error { cancel(); return <-ended }
	synctest.Wait()
	return r
}

func (r *rig) state() watcher.State {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// records returns the records of the log after seq, one line each.
func (r *rig) records(after uint64) string {
	r.t.Helper()
	records, err := r.log.ReadAfter(after, 100000)
	if err != nil {
		r.t.Fatal(err)
	}
	var b strings.Builder
	for _, rec := range records {
		switch e := rec.Event.Body.(type) {
		case *events.Begin:
			fmt.Fprintf(&b, "begin %s by %s\n", e.Session, e.Holder)
		case *events.Alive:
			fmt.Fprintf(&b, "alive %s low %d listed %d", e.Session, e.Low, e.Listed.Len())
			if e.Partial {
				b.WriteString(" partial")
			}
			if e.Kinds != nil {
				fmt.Fprint(&b, " of ", e.Kinds)
			}
			b.WriteString("\n")
		case *events.Object:
			if e.Op == events.Put {
				fmt.Fprintf(&b, "put %s=%s", e.Key.Name, e.Value.Bytes)
			} else {
				fmt.Fprintf(&b, "delete %s", e.Key.Name)
			}
			fmt.Fprintf(&b, " pseq %d low %d", e.Pseq, e.Low)
			if e.Batch.Total > 0 {
				fmt.Fprintf(&b, " batch %d/%d", e.Batch.Index, e.Batch.Total)
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

// pass lets the bubble's time pass, which passes when all goroutines wait.
func pass(d time.Duration) { <-time.After(d) }

func (r *rig) want(after uint64, lines ...string) {
	r.t.Helper()
	synctest.Wait()
	want := ""
	for _, l := range lines {
		want += l + "\n"
	}
	if diff := cmp.Diff(want, r.records(after)); diff != "" {
		r.t.Errorf("records after %d (-want +got):\n%s", after, diff)
	}
}

// digest returns the digest of the source's objects.
func (s *source) digest() events.Digest {
	d := s.digests()
	return d.Sum()
}

func (s *source) digests() *events.ShardDigests {
	var d events.ShardDigests
	for name, content := range s.objects {
		o := object(name, content)
		if events.KindsOf(s.kinds...).Cover(o.Kind) {
			k := ident.Key{Source: shard.Source, Instance: shard.Instance, Kind: o.Kind, Name: o.Name}
			d.Toggle(k, events.ContentHash(k, o.Value))
		}
	}
	return &d
}

func (r *rig) lastAlive() *events.Alive {
	r.t.Helper()
	rec, err := r.log.Last(r.t.Context(), events.ControlSubject(shard))
	if err != nil {
		r.t.Fatal(err)
	}
	a, ok := rec.Event.Body.(*events.Alive)
	if !ok {
		r.t.Fatalf("the last control record is %T", rec.Event.Body)
	}
	return a
}

func TestListing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(map[string]string{"x": "1", "y": "2"})
		r := start(t, s, options{})
		r.want(0, "begin a-1 by a", "put x=1 pseq 1 low 1", "put y=2 pseq 2 low 1", "alive a-1 low 3 listed 1024")
		if got := r.lastAlive().Digest; got != s.digest() {
			t.Errorf("digest %x, want %x", got, s.digest())
		}
		want := watcher.State{Phase: watcher.PhaseFollowing, Session: "a-1", Keys: 2, Listed: time.Now()}
		if diff := cmp.Diff(want, r.state()); diff != "" {
			t.Error(diff)
		}
		if err := r.stop(); !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	})
}

func TestListingByDigests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := newSource(map[string]string{"same": "1", "changed": "old", "gone": "x"}).digests()
		s := newSource(map[string]string{"same": "1", "changed": "new"})
		r := start(t, s, options{leader: leader{held}})
		r.want(0, "begin a-1 by a", "put changed=new pseq 1 low 1", "alive a-1 low 2 listed 2")
		listed := r.lastAlive().Listed
		for _, name := range []string{"changed", "gone"} {
			if b := events.Bucket(ident.Key{Kind: "K", Name: name}); !listed.Has(b) {
				t.Errorf("the bucket of %q is not listed", name)
			}
		}
		if got := r.lastAlive().Digest; got != s.digest() {
			t.Errorf("digest %x, want %x", got, s.digest())
		}
		_ = r.stop()
	})
}

func TestChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(map[string]string{"x": "A"})
		r := start(t, s, options{})
		for _, c := range [][]string{
			{"x=A"},          // unchanged
			{"x=B"}, {"x=A"}, // A, B, A are three events
			{"y="},               // never existed
			{"x=", "y=1", "z=1"}, // several at once
			{"x=", "y=1", "z=2"}, // one of them changed
		} {
			s.change(c...)
			synctest.Wait()
		}
		r.want(3,
			"put x=B pseq 2 low 2", "put x=A pseq 3 low 3",
			"delete x pseq 4 low 4 batch 0/3", "put y=1 pseq 5 low 4 batch 1/3", "put z=1 pseq 6 low 4 batch 2/3",
			"put z=2 pseq 7 low 7")
		changed := time.Now()
		<-time.After(time.Minute)
		if st := r.state(); !st.Changed.Equal(changed) || !st.Listed.Equal(changed) {
			t.Errorf("listed %v, changed %v; want %v", st.Listed, st.Changed, changed)
		}
		_ = r.stop()
	})
}

func TestMassChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(map[string]string{})
		r := start(t, s, options{})
		var set []string
		for i := range 1200 {
			set = append(set, fmt.Sprintf("o%d=1", i))
		}
		s.change(set...)
		synctest.Wait()
		records, err := r.log.ReadAfter(2, 2000)
		if err != nil || len(records) != 1200 {
			t.Fatalf("%d records, %v", len(records), err)
		}
		for i, rec := range records {
			o := rec.Event.Body.(*events.Object)
			low := uint64(1 + i/events.MaxBatch*events.MaxBatch)
			if o.Pseq != uint64(i+1) || o.Low != low || o.Batch.Index != uint32(i) || o.Batch.Total != 1200 {
				t.Fatalf("record %d: pseq %d low %d batch %+v, want low %d", i, o.Pseq, o.Low, o.Batch, low)
			}
		}
		_ = r.stop()
	})
}

func TestHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(map[string]string{"x": "1"})
		r := start(t, s, options{})
		pass(5 * time.Second)
		s.change("x=2")
		pass(16 * time.Second)
		r.want(3, "put x=2 pseq 2 low 2", "alive a-1 low 3 listed 0", "alive a-1 low 3 listed 0")
		if got := r.lastAlive().Digest; got != s.digest() {
			t.Errorf("digest %x, want %x", got, s.digest())
		}
		_ = r.stop()
	})
}

func TestPartial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(map[string]string{"x": "1"})
		s.partial = true
		r := start(t, s, options{leader: leader{s.digests()}})
		r.want(0, "begin a-1 by a", "put x=1 pseq 1 low 1", "alive a-1 low 2 listed 1024 partial")
		s.change("unknown=") // deletes an object that could not be listed
		r.want(3, "delete unknown pseq 2 low 2")
		pass(time.Second)
		s.set(func(s *source) { s.partial = false })
		s.end(nil) // readable again
		r.want(4, "begin a-2 by a", "alive a-2 low 1 listed 0")
		_ = r.stop()
	})
}

func TestListingRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(map[string]string{"x": "1"})
		r := start(t, s, options{})
		r.requests <- "digests differ"
		r.want(3, "begin a-2 by a", "put x=1 pseq 1 low 1", "alive a-2 low 2 listed 1024")
		_ = r.stop()
	})
}

func TestSourceDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(map[string]string{"x": "1", "y": "1", "z": "1"})
		r := start(t, s, options{})
		began := time.Now()
		down := errors.New("open /etc/mesh: no such file or directory")
		s.set(func(s *source) { s.down = down })
		s.end(down)
		pass(21 * time.Second)
		synctest.Wait()
		r.want(5, "alive a-1 low 4 listed 0", "alive a-1 low 4 listed 0")
		if r.state().Phase != watcher.PhaseDown || len(r.state().Diagnostics) != 1 || !strings.Contains(r.state().Diagnostics[0].Reason, "no such file") {
			t.Errorf("state %+v", r.state())
		}
		if at := r.state().Down; !at.Equal(began) {
			t.Errorf("down since %s, want %s, when it first failed", at, began)
		}
		s.set(func(s *source) {
			if s.runs > 9 {
				t.Errorf("%d runs within %s", s.runs, time.Since(began))
			}
			s.down, s.objects = nil, map[string]string{"y": "1", "z": "2"}
		})
		pass(30 * time.Second)
		r.want(7, "alive a-1 low 4 listed 0", "put z=2 pseq 4 low 4 batch 0/2", "delete x pseq 5 low 4 batch 1/2",
			"alive a-1 low 6 listed 0", "alive a-1 low 6 listed 0")
		if r.state().Phase != watcher.PhaseFollowing || len(r.state().Diagnostics) != 0 || !r.state().Down.IsZero() {
			t.Errorf("state %+v", r.state())
		}
		_ = r.stop()
	})
}

func TestSourceDownAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(map[string]string{"x": "1"})
		s.down = errors.New("not there")
		r := start(t, s, options{})
		r.want(0, "begin a-1 by a")
		if r.state().Phase != watcher.PhaseDown {
			t.Errorf("state %+v", r.state())
		}
		s.set(func(s *source) { s.down = nil })
		pass(time.Second)
		r.want(1, "put x=1 pseq 1 low 1", "alive a-1 low 2 listed 1024")
		_ = r.stop()
	})
}

func TestProblems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(map[string]string{})
		r := start(t, s, options{})
		report := func(origin string, ds ...problem.Diagnostic) {
			s.say <- func(_ context.Context, sink watcher.Sink) error { sink.Problems(origin, ds); return errGoOn }
			synctest.Wait()
		}
		a, b := problem.Diagnostic{Severity: problem.Error, Reason: "a"}, problem.Diagnostic{Severity: problem.Error, Reason: "b"}
		report("2.yaml", b)
		report("1.yaml", a)
		if diff := cmp.Diff([]problem.Diagnostic{a, b}, r.state().Diagnostics); diff != "" {
			t.Error(diff)
		}
		report("2.yaml")
		if diff := cmp.Diff([]problem.Diagnostic{a}, r.state().Diagnostics); diff != "" {
			t.Error(diff)
		}
		_ = r.stop()
	})
}

func TestRefusedKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(map[string]string{"x": "1", strings.Repeat("n", 5000): "1", "\xff": "1"})
		r := start(t, s, options{})
		r.want(0, "begin a-1 by a", "put x=1 pseq 1 low 1", "alive a-1 low 2 listed 1024")
		if len(r.state().Diagnostics) != 2 {
			t.Errorf("diagnostics %+v", r.state().Diagnostics)
		}
		_ = r.stop()
	})
}
