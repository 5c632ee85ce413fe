package watcher_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/services/watcher"
)

// TestKinds checks that each alive of a session names the kinds of its listing, and
// that its digests cover these kinds.
func TestKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(map[string]string{"A/x": "1", "B/y": "1"})
		s.kinds = []string{"B", "A", "B"}
		r := start(t, s, options{})
		r.want(0, "begin a-1 by a", "put x=1 pseq 1 low 1", "put y=1 pseq 2 low 1", "alive a-1 low 3 listed 1024 of [A B]")
		s.change("A/x=")
		pass(10 * time.Second)
		r.want(4, "delete x pseq 3 low 3", "alive a-1 low 4 listed 0 of [A B]")
		if got := r.lastAlive().Digest; got != s.digest() {
			t.Errorf("digest %x, want %x", got, s.digest())
		}
		_ = r.stop()
	})
}

// TestOtherKindsThanListed checks that objects of a kind that the listing does not
// name are sent whatever the digests are, and are not part of the digests.
func TestOtherKindsThanListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(map[string]string{"A/x": "1", "B/y": "1"})
		s.kinds = []string{"A"}
		r := start(t, s, options{leader: leader{s.digests()}})
		r.want(0, "begin a-1 by a", "put y=1 pseq 1 low 1", "alive a-1 low 2 listed 0 of [A]")
		s.change("B/y=2")
		synctest.Wait()
		s.change("B/y=2")      // unchanged
		s.change("B/unknown=") // the log may hold it
		s.change("A/unknown=") // the log does not hold it
		pass(10 * time.Second)
		r.want(3, "put y=2 pseq 2 low 2", "delete unknown pseq 3 low 3", "alive a-1 low 4 listed 0 of [A]")
		if got := r.lastAlive().Digest; got != s.digest() {
			t.Errorf("digest %x, want %x", got, s.digest())
		}
		_ = r.stop()
	})
}

// TestChangedKinds checks that a listing of other kinds begins a new session, whether
// the watcher is run again or lists again.
func TestChangedKinds(t *testing.T) {
	for _, test := range []struct {
		name        string
		before, now []string
	}{
		{"one more", []string{"A"}, []string{"A", "B"}},
		{"one less", []string{"A", "B"}, []string{"B"}},
		{"some of all", nil, []string{"B"}},
		{"all", []string{"B"}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSource(map[string]string{})
				s.kinds = test.before
				r := start(t, s, options{})
				pass(time.Second)
				s.set(func(s *source) { s.kinds = test.now })
				s.end(nil)
				synctest.Wait()
				if got := r.lastAlive(); got.Session != "a-2" || !got.Kinds.Equal(events.KindsOf(test.now...)) {
					t.Errorf("run again: session %s has the kinds %v", got.Session, got.Kinds)
				}
				s.set(func(s *source) { s.kinds = test.before })
				s.say <- func(ctx context.Context, sink watcher.Sink) error {
					l, _ := s.list()
					_ = sink.List(ctx, l)
					return errGoOn
				}
				synctest.Wait()
				if got := r.lastAlive(); got.Session != "a-3" || !got.Kinds.Equal(events.KindsOf(test.before...)) {
					t.Errorf("listed again: session %s has the kinds %v", got.Session, got.Kinds)
				}
				_ = r.stop()
			})
		})
	}
}

// TestRelistedKinds checks that a listing within a session deletes no objects of
// kinds that it does not name.
func TestRelistedKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(map[string]string{"A/x": "1", "A/z": "1", "B/y": "1"})
		s.kinds = []string{"A"}
		r := start(t, s, options{})
		s.set(func(s *source) { s.objects = map[string]string{"A/x": "2"} })
		s.say <- func(ctx context.Context, sink watcher.Sink) error {
			l, _ := s.list()
			_ = sink.List(ctx, l)
			return errGoOn
		}
		r.want(5, "put x=2 pseq 4 low 4 batch 0/2", "delete z pseq 5 low 4 batch 1/2")
		_ = r.stop()
	})
}

// TestNoKind checks that a source that lists no kind counts as down: on the log, a
// listing without kinds would mean all kinds.
func TestNoKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(map[string]string{})
		s.kinds = []string{}
		r := start(t, s, options{})
		r.want(0, "begin a-1 by a")
		if st := r.state(); st.Phase != watcher.PhaseDown || len(st.Diagnostics) != 1 || !strings.Contains(st.Diagnostics[0].Reason, "for no kind") {
			t.Errorf("state %+v", st)
		}
		_ = r.stop()
	})
}

// TestEndedSession checks that a watcher begins a session without waiting after a
// session that ended itself, as an operator's does: when it is asked to list, or when
// its next alive is refused. A twin does not wait either.
func TestEndedSession(t *testing.T) {
	end := func(t *testing.T, r *rig) {
		t.Helper()
		said := []events.Event{
			{ID: "op-1", Actor: "ann", Body: &events.Begin{Shard: shard, Session: "op", Holder: "ann"}},
			{ID: "op-2", Actor: "ann", Body: &events.Alive{Shard: shard, Session: "op", Low: 1, Listed: events.AllBuckets(), Kinds: events.KindsOf("B"), Ends: true}},
		}
		if _, err := r.log.Append(t.Context(), said, fence(r)); err != nil {
			t.Fatal(err)
		}
	}
	again := []string{"begin op by ann", "alive op low 1 listed 1024 of [B]", "begin a-2 by a", "put x=1 pseq 1 low 1", "alive a-2 low 2 listed 1024 of [A]"}
	begin := func(t *testing.T) *rig {
		s := newSource(map[string]string{"A/x": "1"})
		s.kinds = []string{"A"}
		return start(t, s, options{})
	}
	t.Run("asked", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := begin(t)
			end(t, r)
			r.requests <- "objects were removed"
			r.want(3, again...)
			_ = r.stop()
		})
	})
	t.Run("refused", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := begin(t)
			end(t, r)
			pass(10 * time.Second)
			r.want(3, again...)
			_ = r.stop()
		})
	})
	t.Run("twin", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := begin(t)
			_ = r.stop()
			end(t, r)
			b := start(t, newSource(map[string]string{}), options{holder: "b", log: r.log})
			b.want(5, "begin b-1 by b", "alive b-1 low 1 listed 1024")
			_ = b.stop()
		})
	})
}

// fence returns a fence on the last control record.
func fence(r *rig) events.Fence {
	rec, err := r.log.Last(r.t.Context(), events.ControlSubject(shard))
	if err != nil {
		r.t.Fatal(err)
	}
	return events.Fence{Kind: events.FenceSubject, Subject: events.ControlSubject(shard), Seq: rec.Seq}
}
