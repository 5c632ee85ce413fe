package natsfeed_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/deploy/testkit/natstest"
	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
	"meshlog.dev/store/natsfeed"
)

// newBus starts a server with the streams of a chain.
func newBus(t testing.TB) *natstest.Server {
	t.Helper()
	b := natstest.Start(t)
	if e, err := natsfeed.EnsureStreams(t.Context(), b.Connect(t), natsfeed.StreamOptions{}); err != nil || !e.Created {
		t.Fatalf("the streams of a new server: %+v, %v", e, err)
	}
	return b
}

func open(t testing.TB, b *natstest.Server) (*natsfeed.Feed, *nats.Conn) {
	t.Helper()
	nc := b.Connect(t)
	f, err := natsfeed.Open(t.Context(), nc, natsfeed.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return f, nc
}

// version returns 1.seq after prev, with one row changed to value.
func version(prev store.Stored, seq uint64, value []byte) (store.Stored, store.Update) {
	d := store.Delta{Put: []store.Row{{Key: "counter", Value: fmt.Append(nil, seq)}, {Key: "value", Value: value}}}
	s := prev.Snapshot.With(d)
	root, was := s.Root(), prev.Snapshot.Root()
	m := &store.Manifest{Version: store.VersionProto(ident.Position{Epoch: 1, Seq: seq}), Root: root[:]}
	if prev.Manifest != nil {
		m.Previous, m.PreviousRoot = store.VersionProto(prev.Version()), was[:]
	}
	return store.Stored{Manifest: m, Snapshot: s}, store.Update{Manifest: m, Delta: store.Diff(prev.Snapshot, s)}
}

// publish appends the next version after prev.
func publish(t testing.TB, f *natsfeed.Feed, prev store.Stored, seq uint64, value []byte) store.Stored {
	t.Helper()
	v, u := version(prev, seq, value)
	head, err := f.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Publish(t.Context(), u, head.Seq, f.Generation()); err != nil {
		t.Fatal(err)
	}
	return v
}

func next(t testing.TB, fo store.Follower, have store.Stored) []store.Update {
	t.Helper()
	links, err := fo.Next(t.Context(), have.Version(), have.Snapshot.Root())
	if err != nil {
		t.Fatal(err)
	}
	return links
}

// wantNext fails unless the links lead from have to want.
func wantNext(t testing.TB, fo store.Follower, have, want store.Stored) {
	t.Helper()
	s := have.Snapshot
	for _, u := range next(t, fo, have) {
		s = s.With(u.Delta)
	}
	if s.Root() != want.Snapshot.Root() {
		t.Fatalf("links from %s lead to root %s, want version %s with %s", have.Version(), s.Root(), want.Version(), want.Snapshot.Root())
	}
}

func TestEnsureStreams(t *testing.T) {
	b := newBus(t)
	nc := b.Connect(t)
	first, err := natsfeed.EnsureStreams(t.Context(), nc, natsfeed.StreamOptions{})
	if err != nil || first.Created {
		t.Errorf("a second time: %+v, %v", first, err)
	}
	js := natstest.JetStream(t, nc)
	if err := js.DeleteStream(t.Context(), "OBJ_"+natsfeed.BlobBucket); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		e, err := natsfeed.EnsureStreams(t.Context(), nc, natsfeed.StreamOptions{})
		if err != nil || e.Created || !e.BlobsMade.After(first.BlobsMade) {
			t.Errorf("without blobs: %+v, %v; want them made after %v, and nothing else", e, err, first.BlobsMade)
		}
		first.BlobsMade = e.BlobsMade.Add(-1)
	}
	s, err := js.Stream(t.Context(), natsfeed.Stream)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Purge(t.Context()); err == nil {
		t.Error("the stream can be purged")
	}
	for field, spoil := range map[string]func(c *jetstream.StreamConfig){
		"allow_direct: is false, must be true":                                  func(c *jetstream.StreamConfig) { c.AllowDirect = false },
		"republish: is unset, must be from meshlog.ver.> to meshlog.live.ver.>": func(c *jetstream.StreamConfig) { c.RePublish = nil },
		"headers only":                               func(c *jetstream.StreamConfig) { c.RePublish.HeadersOnly = true },
		"deny_delete: is false, must be true":        func(c *jetstream.StreamConfig) { c.DenyDelete = false },
		"deny_purge: is false, must be true":         func(c *jetstream.StreamConfig) { c.DenyPurge = false },
		"max_msgs: is 5, must be -1":                 func(c *jetstream.StreamConfig) { c.MaxMsgs = 5 },
		"max_msgs_per_subject: is 1, must be -1":     func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 1 },
		"discard: is DiscardOld, must":               func(c *jetstream.StreamConfig) { c.MaxBytes = 1 << 20 },
		"max_age: versions are kept for 1h0m0s":      func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour },
		"subjects: is [meshlog.ver.> more], must be": func(c *jetstream.StreamConfig) { c.Subjects = append(c.Subjects, "more") },
	} {
		config := natsfeed.StreamOptions{}.Config()
		spoil(&config)
		if err := js.DeleteStream(t.Context(), natsfeed.Stream); err != nil {
			t.Fatal(err)
		}
		if _, err := js.CreateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
		if _, err := natsfeed.EnsureStreams(t.Context(), nc, natsfeed.StreamOptions{}); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v does not say %q", err, field)
		}
	}
}

// The object store keeps blobs without an age.
func TestBrokenBlobs(t *testing.T) {
	b := newBus(t)
	nc := b.Connect(t)
	js := natstest.JetStream(t, nc)
	for field, spoil := range map[string]func(c *jetstream.StreamConfig){
		"max_age: is 1h0m0s, must be 0":       func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour },
		"discard: is DiscardOld, must":        func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardOld },
		"allow_direct: is false, must":        func(c *jetstream.StreamConfig) { c.AllowDirect = false },
		"max_msgs_per_subject: is 1, must be": func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 1 },
	} {
		config := natsfeed.StreamOptions{}.BlobConfig()
		spoil(&config)
		if err := js.DeleteStream(t.Context(), config.Name); err != nil {
			t.Fatal(err)
		}
		if _, err := js.CreateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
		if _, err := natsfeed.EnsureStreams(t.Context(), nc, natsfeed.StreamOptions{}); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v does not say %q", err, field)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	b := newBus(t)
	nc := b.Connect(t)
	for _, domain := range []string{"a.b", "*", ">", "a b", "\x00"} {
		if _, err := natsfeed.Open(t.Context(), nc, natsfeed.Options{Domain: domain}); err == nil {
			t.Errorf("domain %q was opened", domain)
		}
	}
	if err := natstest.JetStream(t, nc).DeleteStream(t.Context(), natsfeed.Stream); err != nil {
		t.Fatal(err)
	}
	if _, err := natsfeed.Open(t.Context(), nc, natsfeed.Options{}); err == nil || !strings.Contains(err.Error(), natsfeed.Stream) {
		t.Errorf("open without the stream: %v", err)
	}
}

// Two domains share the stream and have a chain each.
func TestDomains(t *testing.T) {
	b := newBus(t)
	one, nc := open(t, b)
	two, err := natsfeed.Open(t.Context(), nc, natsfeed.Options{Domain: "other"})
	if err != nil {
		t.Fatal(err)
	}
	var v1, v2 []store.Stored
	var last1, last2 store.Stored
	for seq := range uint64(5) {
		last1 = publish(t, one, last1, seq+1, []byte("one"))
		last2 = publish(t, two, last2, seq+1, []byte("two"))
		v1, v2 = append(v1, last1), append(v2, last2)
	}
	for f, v := range map[*natsfeed.Feed][]store.Stored{one: v1, two: v2} {
		got, err := f.Fetch(t.Context(), v[4].Version())
		if err != nil || got.Snapshot.Root() != v[4].Snapshot.Root() {
			t.Errorf("fetch: %s, %v", got.Version(), err)
		}
		fo, err := f.Follow(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		wantNext(t, fo, v[1], v[4])
		if err := fo.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A delta that is too large for a message goes into a blob.
func TestLargeDeltaIsABlob(t *testing.T) {
	b := newBus(t)
	f, nc := open(t, b)
	fo, err := f.Follow(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer fo.Close()
	first := publish(t, f, store.Stored{}, 1, nil)
	next(t, fo, store.Stored{})
	value := make([]byte, 5<<20)
	for i := range value {
		value[i] = byte(rand.IntN(256))
	}
	for i, size := range []int{400 << 10, 600 << 10, 5 << 20} {
		second := publish(t, f, first, uint64(i+2), value[:size])
		wantNext(t, fo, first, second)
		first = second
	}
	js := natstest.JetStream(t, nc)
	blobs, err := js.ObjectStore(t.Context(), natsfeed.BlobBucket)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := blobs.List(t.Context())
	if err != nil || len(objects) != 2 {
		t.Errorf("%d blobs, %v; want one for each of the two large deltas", len(objects), err)
	}
}

// Equal blobs are stored once, and so are their chunks.
func TestBlobIsKeptOnce(t *testing.T) {
	b := newBus(t)
	f, nc := open(t, b)
	blob := bytes.Repeat([]byte("x"), 300<<10)
	for range 3 {
		if _, err := f.PutBlob(t.Context(), blob); err != nil {
			t.Fatal(err)
		}
	}
	s, err := natstest.JetStream(t, nc).Stream(t.Context(), "OBJ_"+natsfeed.BlobBucket)
	if err != nil {
		t.Fatal(err)
	}
	if n := s.CachedInfo().State.Msgs; n != 4 { // three chunks and the blob's metadata
		t.Errorf("%d messages for one blob, want 4", n)
	}
}

// GetBlob refuses bytes that do not have the hash in the name.
func TestBlobIsVerified(t *testing.T) {
	b := newBus(t)
	f, nc := open(t, b)
	blobs, err := natstest.JetStream(t, nc).ObjectStore(t.Context(), natsfeed.BlobBucket)
	if err != nil {
		t.Fatal(err)
	}
	h := ident.HashOf([]byte("right"))
	if _, err := blobs.PutString(t.Context(), h.String(), "wrong"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.GetBlob(t.Context(), h); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("get: %v, want ErrCorrupt", err)
	}
}

// The server keeps no state for a reader.
func TestNoConsumers(t *testing.T) {
	b := newBus(t)
	f, nc := open(t, b)
	fo, err := f.Follow(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer fo.Close()
	first := publish(t, f, store.Stored{}, 1, nil)
	last := first
	for seq := range uint64(100) {
		last = publish(t, f, last, seq+2, []byte{byte(seq)})
	}
	last = publish(t, f, last, 200, make([]byte, 1<<20))
	wantNext(t, fo, first, last)
	if _, err := f.Fetch(t.Context(), last.Version()); err != nil {
		t.Fatal(err)
	}
	for _, err := range f.History(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
	}
	js := natstest.JetStream(t, nc)
	for _, name := range []string{natsfeed.Stream, "OBJ_" + natsfeed.BlobBucket} {
		s, err := js.Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if n := s.CachedInfo().State.Consumers; n != 0 {
			t.Errorf("stream %s has %d consumers", name, n)
		}
	}
}

// The live message of the last version is lost: a hint makes the follower ask.
func TestHint(t *testing.T) {
	b := newBus(t)
	mute(t, b) // no live messages at all
	f, _ := open(t, b)
	first := publish(t, f, store.Stored{}, 1, nil)
	fo, err := f.Follow(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer fo.Close()
	next(t, fo, store.Stored{})

	type result struct {
		links []store.Update
		err   error
	}
	results := make(chan result, 1)
	go func() {
		links, err := fo.Next(t.Context(), first.Version(), first.Snapshot.Root())
		results <- result{links, err}
	}()
	second := publish(t, f, first, 2, nil)
	third := publish(t, f, second, 3, nil)
	f.Hint(first.Version(), 1) // nothing new
	f.Hint(third.Version(), 3)
	got := <-results
	if got.err != nil || len(got.links) != 2 || store.VersionOf(got.links[1].Manifest.GetVersion()) != third.Version() {
		t.Fatalf("next after a hint: %d links, %v", len(got.links), got.err)
	}
}

// BUS-4: a reader that follows the chain tells of messages that are no versions,
// once for each, and gets the next version.
func TestForeignIsTold(t *testing.T) {
	b := newBus(t)
	nc := b.Connect(t)
	told := make(chan *store.ForeignError, 10)
	f, err := natsfeed.Open(t.Context(), nc, natsfeed.Options{Foreign: func(e *store.ForeignError) { told <- e }})
	if err != nil {
		t.Fatal(err)
	}
	first := publish(t, f, store.Stored{}, 1, nil)
	fo, err := f.Follow(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer fo.Close()
	next(t, fo, store.Stored{})
	links := make(chan []store.Update, 1)
	go func() {
		got, err := fo.Next(t.Context(), first.Version(), first.Snapshot.Root())
		if err != nil {
			t.Error(err)
		}
		links <- got
	}()
	js := natstest.JetStream(t, nc)
	if _, err := js.Publish(t.Context(), natsfeed.SubjectPrefix+"mesh", []byte("no version")); err != nil {
		t.Fatal(err)
	}
	if e := <-told; e.Seq != 2 || e.Messages != 1 {
		t.Errorf("told of %d messages, the newest at %d; want 1, at 2", e.Messages, e.Seq)
	}
	for range 3 { // nothing new
		if head, err := f.Head(t.Context()); err != nil || head.Seq != 2 || head.Version() != first.Version() {
			t.Errorf("head %s at %d, %v", head.Version(), head.Seq, err)
		}
	}
	second := publish(t, f, first, 2, nil)
	if got := <-links; len(got) != 1 || store.VersionOf(got[0].Manifest.GetVersion()) != second.Version() {
		t.Errorf("%d links, want the one to %s", len(got), second.Version())
	}
	if len(told) > 0 {
		t.Errorf("told %d times more", len(told))
	}
}

// mute makes the server repeat messages on subjects without subscribers.
func mute(t testing.TB, b *natstest.Server) {
	t.Helper()
	js := natstest.JetStream(t, b.Connect(t))
	s, err := js.Stream(t.Context(), natsfeed.Stream)
	if err != nil {
		t.Fatal(err)
	}
	config := s.CachedInfo().Config
	config.RePublish.Destination = "elsewhere.>"
	if _, err := js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
}

// The same over TCP, as between processes.
func TestTCP(t *testing.T) {
	nc := natstest.Connect(t, natstest.StartTCP(t).ClientURL())
	if _, err := natsfeed.EnsureStreams(t.Context(), nc, natsfeed.StreamOptions{MaxAge: time.Hour}); err != nil {
		t.Fatal(err)
	}
	f, err := natsfeed.Open(t.Context(), nc, natsfeed.Options{})
	if err != nil {
		t.Fatal(err)
	}
	fo, err := f.Follow(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer fo.Close()
	first := publish(t, f, store.Stored{}, 1, nil)
	next(t, fo, store.Stored{})
	second := publish(t, f, first, 2, make([]byte, 2<<20))
	wantNext(t, fo, first, second)
}

func BenchmarkPublishToNext(b *testing.B) {
	for _, size := range []int{1 << 10, 100 << 10} {
		b.Run(fmt.Sprintf("bytes=%d", size), func(b *testing.B) {
			bus := newBus(b)
			f, _ := open(b, bus)
			reader, _ := open(b, bus)
			fo, err := reader.Follow(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			defer fo.Close()
			last := publish(b, f, store.Stored{}, 1, nil)
			next(b, fo, store.Stored{})

			// The reader takes the time when Next returns.
			at := make(chan time.Time)
			ctx, cancel := context.WithCancel(b.Context())
			done := make(chan struct{})
			defer func() { cancel(); <-done }()
			go func() {
				defer close(done)
				have := last
				for {
					links, err := fo.Next(ctx, have.Version(), have.Snapshot.Root())
					now := time.Now()
					if err != nil {
						return
					}
					for _, u := range links {
						have = store.Stored{Manifest: u.Manifest, Snapshot: have.Snapshot.With(u.Delta)}
					}
					at <- now
				}
			}()
			value := make([]byte, size)
			var spent time.Duration
			seq := uint64(1)
			for b.Loop() {
				seq++
				value[0] = byte(seq)
				v, u := version(last, seq, bytes.Clone(value))
				from := time.Now()
				if _, err := f.Publish(b.Context(), u, seq-1, f.Generation()); err != nil {
					b.Fatal(err)
				}
				spent += (<-at).Sub(from)
				last = v
			}
			b.ReportMetric(float64(spent.Microseconds())/float64(b.N), "us/publish-to-next")
		})
	}
}
