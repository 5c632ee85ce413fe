package watcher_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"meshlog.dev/events"
	"meshlog.dev/events/memlog"
	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/watcher"
)

// shaky is a log that can fail chosen appends.
type shaky struct {
	watcher.Log
	// before and after run around each append. The caller gets their error. If
	// before fails, the events are not on the log; if after fails, they are.
	before, after func(batch []events.Event) error
}

func (l *shaky) around(batch []events.Event, do func() error) error {
	if l.before != nil {
		if err := l.before(batch); err != nil {
			return err
		}
	}
	err := do()
	if err == nil && l.after != nil {
		err = l.after(batch)
	}
	return err
}

func (l *shaky) Append(ctx context.Context, batch []events.Event, fence events.Fence) (ack events.Ack, err error) {
	err = l.around(batch, func() error { ack, err = l.Log.Append(ctx, batch, fence); return err })
	return ack, err
}

func (l *shaky) AppendEach(ctx context.Context, batch []events.Event) error {
	return l.around(batch, func() error { return l.Log.AppendEach(ctx, batch) })
}

func (l *shaky) wrap(log watcher.Log) watcher.Log { l.Log = log; return l }

// TestLostReply loses the request or the reply of every append in turn, and checks
// that the log ends up the same.
func TestLostReply(t *testing.T) {
	want := []string{
		"begin a-1 by a", "put x=1 pseq 1 low 1", "put y=1 pseq 2 low 1", "alive a-1 low 3 listed 1024",
		"put x=2 pseq 3 low 3", "delete x pseq 4 low 4 batch 0/2", "put y=2 pseq 5 low 4 batch 1/2",
		"alive a-1 low 6 listed 0",
	}
	for n := range 6 {
		for _, reply := range []bool{false, true} {
			t.Run(fmt.Sprintf("append %d, reply %t", n, reply), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					count := 0
					lose := func([]events.Event) error {
						if count++; count == n+1 {
							return errors.New("timeout")
						}
						return nil
					}
					l := &shaky{before: lose}
					if reply {
						l = &shaky{after: lose}
					}
					s := newSource(map[string]string{"x": "1", "y": "1"})
					r := start(t, s, options{faulty: l.wrap})
					pass(time.Second)
					s.change("x=2")
					pass(time.Second)
					s.change("x=", "y=2")
					pass(10 * time.Second)
					r.want(0, want...)
					_ = r.stop()
				})
			})
		}
	}
}

// TestCoalesce checks that, while an append is in flight, only the last change of
// each object waits.
func TestCoalesce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		l := &shaky{before: func(b []events.Event) error {
			if o, ok := b[0].Body.(*events.Object); ok && o.Pseq == 2 {
				<-gate
			}
			return nil
		}}
		s := newSource(map[string]string{"x": "1"})
		r := start(t, s, options{faulty: l.wrap})
		s.change("x=2")
		synctest.Wait()
		for _, c := range []string{"x=3", "y=1", "x=4", "y=", "z=1", "x=5"} {
			s.change(c)
		}
		synctest.Wait()
		r.want(3)
		close(gate)
		r.want(3, "put x=2 pseq 2 low 2", "put x=5 pseq 3 low 3", "put z=1 pseq 4 low 3")
		_ = r.stop()
	})
}

func TestFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(map[string]string{"x": "1"})
		r := start(t, s, options{})
		r.log.SetMaxBytes(r.log.Bytes())
		s.change("x=2")
		synctest.Wait()
		s.change("x=3")
		s.change("y=1", "z=1")
		pass(time.Minute)
		r.want(3)
		if s := r.state(); s.Pending != 4 || len(s.Diagnostics) != 1 || !strings.Contains(s.Diagnostics[0].Reason, "full") {
			t.Errorf("state %+v", s)
		}
		r.log.SetMaxBytes(0)
		pass(5 * time.Second)
		r.want(3, "put x=2 pseq 2 low 2",
			"put x=3 pseq 3 low 3 batch 0/3", "put y=1 pseq 4 low 3 batch 1/3", "put z=1 pseq 5 low 3 batch 2/3",
			"alive a-1 low 6 listed 0")
		_ = r.stop()
	})
}

func TestTooLarge(t *testing.T) {
	huge := strings.Repeat("x", memlog.MaxEvent)
	for _, c := range []struct {
		name string
		run  func(s *source)
	}{
		{"alone", func(s *source) { s.change("x=" + huge); synctest.Wait(); s.change("y=2") }},
		{"in a set", func(s *source) { s.change("x="+huge, "y=2") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSource(map[string]string{"x": "1", "y": "1"})
				r := start(t, s, options{})
				c.run(s)
				synctest.Wait()
				rec, err := r.log.Get(t.Context(), 5)
				if err != nil {
					t.Fatal(err)
				}
				o := rec.Event.Body.(*events.Object)
				var u registryv1.Undecoded
				if err := proto.Unmarshal(o.Value.Bytes, &u); err != nil || o.Key.Name != "x" || !strings.Contains(u.GetError(), "more than the log takes") {
					t.Errorf("put %s: %s %v, %v", o.Key, o.Value.Type, &u, err)
				}
				if rec, err = r.log.Get(t.Context(), 6); err != nil || rec.Event.Body.(*events.Object).Key.Name != "y" {
					t.Errorf("the other one: %+v, %v", rec, err)
				}
				_ = r.stop()
			})
		})
	}
}

// TestPrivateKey checks that the publisher withholds an object with a private key,
// whatever its watcher let through, and publishes the others of its set (BUS-8).
func TestPrivateKey(t *testing.T) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	secret := base64.StdEncoding.EncodeToString(der)
	synctest.Test(t, func(t *testing.T) {
		s := newSource(map[string]string{"x": "1", "y": "1", "listed": "before " + secret})
		r := start(t, s, options{})
		s.change("x=key: "+secret, "y=2")
		synctest.Wait()
		s.change("x=3")
		synctest.Wait()
		b, err := r.log.Bounds(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var puts []string
		for seq := b.First; seq <= b.Last; seq++ {
			rec, err := r.log.Get(t.Context(), seq)
			if err != nil {
				t.Fatal(err)
			}
			o, ok := rec.Event.Body.(*events.Object)
			if !ok {
				continue
			}
			text := string(o.Value.Bytes)
			if strings.Contains(text, secret[:20]) || bytes.Contains(o.Value.Bytes, der[:20]) {
				t.Errorf("record %d: the key of %s is on the log", seq, o.Key)
			}
			if o.Value.Type == ident.Undecoded {
				var u registryv1.Undecoded
				if err := proto.Unmarshal(o.Value.Bytes, &u); err != nil || !strings.Contains(u.GetError(), "holds a private key (in PKCS#8, in base64)") || !strings.Contains(u.GetError(), "replace the key") {
					t.Errorf("record %d: %v, %v", seq, &u, err)
				}
				text = "withheld"
			}
			puts = append(puts, o.Key.Name+"="+text)
		}
		slices.Sort(puts)
		want := []string{"listed=withheld", "x=1", "x=3", "x=withheld", "y=1", "y=2"}
		if !slices.Equal(puts, want) {
			t.Errorf("published %v, want %v", puts, want)
		}
		_ = r.stop()
	})
}

// TestTakeover checks that a twin takes over after 30 s without a record of the
// holder.
func TestTakeover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects := map[string]string{"x": "1"}
		a := start(t, newSource(objects), options{})
		b := start(t, newSource(objects), options{holder: "b", log: a.log})
		pass(45 * time.Second)
		synctest.Wait()
		if b.state().Phase != watcher.PhaseStandby || a.state().Phase != watcher.PhaseFollowing {
			t.Fatalf("a is %s, b is %s", a.state().Phase, b.state().Phase)
		}
		_ = a.stop() // 5 s after its last record
		pass(20 * time.Second)
		synctest.Wait()
		if b.state().Phase != watcher.PhaseStandby {
			t.Fatalf("after 25 s of silence b is %s", b.state().Phase)
		}
		pass(7 * time.Second)
		b.want(7, "begin b-1 by b", "put x=1 pseq 1 low 1", "alive b-1 low 2 listed 1024")

		again := start(t, newSource(objects), options{log: a.log})
		synctest.Wait()
		if again.state().Phase != watcher.PhaseStandby {
			t.Errorf("the restarted a is %s", again.state().Phase)
		}
		_ = b.stop()
		_ = again.stop()
	})
}

// TestWarmTwin checks that a twin reads its source after 20 s of silence, so that it
// can list at once when it takes over. If the holder publishes again, the twin drops
// the listing.
func TestWarmTwin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects := map[string]string{"x": "1"}
		a := start(t, newSource(objects), options{})
		_ = a.stop()
		s := newSource(objects)
		reads := func(want int) {
			t.Helper()
			synctest.Wait()
			s.set(func(s *source) {
				if s.runs != want {
					t.Errorf("the twin has read its source %d times, want %d", s.runs, want)
				}
			})
		}
		b := start(t, s, options{holder: "b", log: a.log})
		pass(19 * time.Second)
		reads(0)
		pass(5 * time.Second)
		reads(1)
		a = start(t, newSource(objects), options{id: "again", log: a.log})
		pass(5 * time.Second)
		_ = a.stop()
		s.set(func(s *source) { s.objects["x"] = "2" }) // no run reports this change
		said, err := a.log.Bounds(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		pass(23 * time.Second)
		reads(2)
		s.change("y=1")
		pass(2 * time.Second)
		if b.state().Phase != watcher.PhaseStandby {
			t.Errorf("after 25 s of silence b is %s", b.state().Phase)
		}
		pass(8 * time.Second)
		b.want(said.Last, "begin b-1 by b", "put x=2 pseq 1 low 1", "alive b-1 low 2 listed 1024", "put y=1 pseq 2 low 2")
		reads(2)
		_ = b.stop()
	})
}

// TestTwinStartsLate checks that a twin that starts late measures the earlier silence
// by the server's clock.
func TestTwinStartsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := start(t, newSource(map[string]string{}), options{})
		_ = a.stop()
		pass(time.Minute)
		a.log.AppendRaw("_operator.overlay", []byte("whatever is newer"))
		b := start(t, newSource(map[string]string{}), options{holder: "b", log: a.log})
		b.want(3, "begin b-1 by b", "alive b-1 low 1 listed 1024")
		_ = b.stop()
	})
}

// TestServersClock checks that a twin waits for 30 s of silence even if the server's
// clock differs from its own, or is set while the twin waits.
func TestServersClock(t *testing.T) {
	for name, clock := range map[string]struct{ ahead, later time.Duration }{
		"ahead":            {time.Hour, time.Hour},
		"behind":           {-time.Hour, -time.Hour},
		"is set back":      {0, -time.Hour},
		"is set forward":   {0, time.Hour},
		"was ahead of all": {24 * time.Hour, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ahead := clock.ahead
				log := memlog.New(func() time.Time { return time.Now().Add(ahead) })
				objects := map[string]string{"x": "1"}
				a := start(t, newSource(objects), options{log: log})
				b := start(t, newSource(objects), options{holder: "b", log: log})
				pass(12 * time.Second) // a's last record is 2 s old
				_ = a.stop()
				ahead = clock.later
				pass(26 * time.Second)
				if b.state().Phase != watcher.PhaseStandby {
					t.Fatalf("after 28 s of silence b is %s", b.state().Phase)
				}
				pass(5 * time.Second)
				if b.state().Phase != watcher.PhaseFollowing {
					t.Errorf("after 33 s of silence b is %s", b.state().Phase)
				}
				if strings.Contains(b.records(0), "delete") {
					t.Errorf("an object was deleted:\n%s", b.records(0))
				}
				_ = b.stop()
			})
		})
	}
}

// TestRestart checks that a restarted holder begins at once.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := start(t, newSource(map[string]string{}), options{})
		_ = a.stop()
		again := start(t, newSource(map[string]string{}), options{id: "again", log: a.log})
		again.want(2, "begin again-1 by a", "alive again-1 low 1 listed 1024")
		_ = again.stop()
	})
}

// TestFenceLost checks that a publisher that loses its fence stands by.
func TestFenceLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(map[string]string{})
		r := start(t, s, options{})
		_, err := r.log.Append(t.Context(), []events.Event{{ID: "other", Body: &events.Begin{Shard: shard, Session: "other", Holder: "a"}}}, events.Fence{})
		if err != nil {
			t.Fatal(err)
		}
		pass(11 * time.Second)
		synctest.Wait()
		if r.state().Phase != watcher.PhaseStandby {
			t.Errorf("state %+v", r.state())
		}
		r.want(3)
		pass(30 * time.Second)
		r.want(3, "begin a-2 by a", "alive a-2 low 1 listed 1024")
		_ = r.stop()
	})
}

// TestLongListing checks that a holder that takes long to list does not count as
// silent.
func TestLongListing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &shaky{after: func(b []events.Event) error {
			if len(b) > 1 {
				pass(12 * time.Second)
			}
			return nil
		}}
		objects := map[string]string{}
		for i := range 5 * events.MaxBatch {
			objects[fmt.Sprint(i)] = "1"
		}
		a := start(t, newSource(objects), options{faulty: slow.wrap})
		b := start(t, newSource(objects), options{holder: "b", log: a.log})
		pass(time.Minute)
		synctest.Wait()
		if a.state().Phase != watcher.PhaseFollowing || b.state().Phase != watcher.PhaseStandby {
			t.Errorf("a is %s, b is %s", a.state().Phase, b.state().Phase)
		}
		_ = a.stop()
		_ = b.stop()
	})
}

// TestRewind checks that, after a rewind, the holder of the last record begins at
// once.
func TestRewind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(map[string]string{"x": "1"})
		r := start(t, s, options{})
		pass(35 * time.Second)
		r.log.Rewind(4)
		pass(6 * time.Second)
		r.want(4, "begin a-2 by a", "put x=1 pseq 1 low 1", "alive a-2 low 2 listed 1024")
		_ = r.stop()
	})
}

func TestLogClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(map[string]string{"x": "1"})
		r := start(t, s, options{})
		_ = r.log.Close()
		s.change("x=2")
		synctest.Wait()
		if err := r.stop(); !errors.Is(err, events.ErrClosed) {
			t.Errorf("Run returned %v", err)
		}
	})
}

// TestOldRunBeforeListing checks that the publisher drops a change that the watcher
// reported before the session's listing, because the change is older.
func TestOldRunBeforeListing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := false
		l := &shaky{before: func(batch []events.Event) error {
			if b, ok := batch[0].Body.(*events.Begin); ok && b.Session == "a-2" && !failed {
				failed = true
				return errors.New("timeout")
			}
			return nil
		}}
		s := newSource(map[string]string{"x": "1"})
		r := start(t, s, options{faulty: l.wrap})
		r.requests <- "digests differ"
		synctest.Wait() // the begin of a-2 failed, and the publisher will retry it
		older := func(ctx context.Context, sink watcher.Sink) error {
			if err := sink.Change(ctx, []watcher.Object{object("x", "2")}); err != nil {
				return err
			}
			return errGoOn
		}
		select {
		case s.say <- older:
		default: // the watcher does not run
		}
		s.set(func(s *source) { s.objects["x"] = "3" })
		pass(time.Second)
		r.want(3, "begin a-2 by a", "put x=3 pseq 1 low 1", "alive a-2 low 2 listed 1024")
		_ = r.stop()
	})
}

// A large listing is appended in few chunks, which are not a batch. If the log
// refuses one object, only that object is replaced.
func TestListsMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects := map[string]string{"huge": strings.Repeat("x", memlog.MaxEvent)}
		for i := range 2*events.MaxBatch + 10 {
			objects[fmt.Sprint("n", i)] = "v"
		}
		appends := 0
		l := &shaky{before: func([]events.Event) error { appends++; return nil }}
		r := start(t, newSource(objects), options{faulty: l.wrap})
		if s := r.state(); s.Phase != watcher.PhaseFollowing || s.Keys != len(objects) {
			t.Errorf("state %+v, want it following with %d objects", s, len(objects))
		}
		// The publisher halves each refused chunk, from 500 events down to 1.
		if appends > 30 {
			t.Errorf("%d objects in %d appends", len(objects), appends)
		}
		if said := r.records(0); strings.Count(said, "put ") != len(objects) || strings.Contains(said, "batch") {
			t.Errorf("%d objects on the log, want %d, none in a batch", strings.Count(said, "put "), len(objects))
		}
		_ = r.stop()
	})
}
