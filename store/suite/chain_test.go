package suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"meshlog.dev/proto/ident"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/store"
)

// Feed is a version chain under test.
type Feed interface {
	store.Publisher
	store.Chain
	store.Copier
	store.Auditor
}

// Bus holds a chain, and causes the faults of a bus.
type Bus interface {
	// Open opens another connection to the chain.
	Open(t *testing.T) Feed
	// Renew renews the connection of a feed. The feed misses all that happens
	// meanwhile.
	Renew(t *testing.T, f Feed)
	// Expire drops all messages; the last sequence stays.
	Expire(t *testing.T)
	// Image copies the chain. The function that it returns restores the copy,
	// and renews all connections.
	Image(t *testing.T) (rewind func())
	// Inject appends an update without a fence and without checks, as a client
	// with a builder's key may.
	Inject(t *testing.T, u store.Update)
	// Foreign returns functions that append a message that no builder would, by
	// what they append.
	Foreign(t *testing.T) map[string]func()
}

var chainTests = []struct {
	name string
	run  func(t *testing.T, bus Bus)
}{
	{"a new chain is empty", testNeverWritten},
	{"published versions are read back", testPublish},
	{"invalid updates are refused", testPublishRefused},
	{"racing publishers make one chain", testOneChain},
	{"blobs are read back by their hash", testBlobs},
	{"a delta larger than a message", testLargeDelta},
	{"fetch returns any version", testFetch},
	{"fetch from a checkpoint of a later manifest", testFetchLateCheckpoint},
	{"fetch fails if a part is missing or wrong", testFetchLost},
	{"history lists the chain from its end", testHistory},
	{"updates copy the chain", testUpdates},
	{"follow from no version", testFollowFromZero},
	{"follow from a recent version", testFollowFromNear},
	{"follow from too far back", testFollowFromFar},
	{"follow from a version of another chain", testFollowFromElsewhere},
	{"follow new versions", testFollowLive},
	{"a cancelled context ends Next", testFollowCancelled},
	{"a follower ahead of the head gets a mismatch", testMismatchAhead},
	{"a follower with other content gets a mismatch", testMismatchContent},
	{"an expired chain has no head", testExpired},
	{"a new connection changes the generation", testReconnect},
	{"a rewind is a mismatch", testRewind},
	{"messages that are no versions are passed over", testForeign},
	{"a chain of foreign messages only has no head", testForeignOnly},
}

// publish appends versions after prev.
func publish(t *testing.T, f Feed, prev store.Stored, versions ...store.Stored) {
	t.Helper()
	for _, v := range versions {
		head, err := f.Head(t.Context())
		must(t, err)
		seq, err := f.Publish(t.Context(), updateOf(prev, v), head.Seq, f.Generation())
		must(t, err)
		if seq != head.Seq+1 {
			t.Fatalf("publish after sequence %d returned %d", head.Seq, seq)
		}
		prev = v
	}
}

// tryPublish returns the error of Publish.
func tryPublish(t *testing.T, f Feed, u store.Update, expect, generation uint64) error {
	_, err := f.Publish(t.Context(), u, expect, generation)
	return err
}

func wantNoFetch(t *testing.T, f Feed, v ident.Position, want error) {
	t.Helper()
	_, err := f.Fetch(t.Context(), v)
	wantErr(t, "fetch of "+v.String(), err, want)
}

func wantHead(t *testing.T, f Feed, seq uint64, want store.Stored) {
	t.Helper()
	head, err := f.Head(t.Context())
	must(t, err)
	if head.Seq != seq || head.Version() != want.Version() {
		t.Fatalf("head is %s at sequence %d, want %s at %d", head.Version(), head.Seq, want.Version(), seq)
	}
	if want.Manifest != nil {
		same(t, "head", store.Stored{Manifest: head.Manifest, Snapshot: want.Snapshot}, want)
	}
}

// follower is a minimal frontend.
type follower struct {
	store.Follower
	have store.Stored
}

func follow(t *testing.T, f Feed, have store.Stored) *follower {
	t.Helper()
	fo, err := f.Follow(t.Context())
	must(t, err)
	t.Cleanup(func() { fo.Close() })
	return &follower{fo, have}
}

func (f *follower) next(t *testing.T) ([]store.Update, error) {
	return f.Next(t.Context(), f.have.Version(), f.have.Snapshot.Root())
}

// wantLinks fails unless Next returns links that lead exactly through versions.
func (f *follower) wantLinks(t *testing.T, versions ...store.Stored) {
	t.Helper()
	links, err := f.next(t)
	must(t, err)
	if len(links) != len(versions) {
		t.Fatalf("next from %s: %d links, want %d", f.have.Version(), len(links), len(versions))
	}
	for i, u := range links {
		prev, root := store.PreviousOf(u.Manifest)
		if prev != f.have.Version() || root != f.have.Snapshot.Root() {
			t.Fatalf("link %d leads from %s, want from %s", i, prev, f.have.Version())
		}
		f.have = store.Stored{Manifest: u.Manifest, Snapshot: f.have.Snapshot.With(u.Delta)}
		same(t, "after "+f.have.Version().String(), f.have, versions[i])
	}
}

// wantNewest fails unless Next returns only the link to want, which does not
// lead from have; then it fetches that.
func (f *follower) wantNewest(t *testing.T, chain store.Chain, want store.Stored) {
	t.Helper()
	links, err := f.next(t)
	must(t, err)
	if len(links) != 1 || store.VersionOf(links[0].Manifest.GetVersion()) != want.Version() {
		t.Fatalf("next from %s: %d links, want the one to %s only", f.have.Version(), len(links), want.Version())
	}
	f.have, err = chain.Fetch(t.Context(), want.Version())
	must(t, err)
	same(t, "fetched", f.have, want)
}

func testNeverWritten(t *testing.T, bus Bus) {
	f := bus.Open(t)
	wantHead(t, f, 0, store.Stored{})
	if f.Generation() == 0 {
		t.Error("the generation is 0")
	}
	wantNoFetch(t, f, ident.Position{Epoch: 1, Seq: 1}, store.ErrNotFound)
	wantManifests(t, f.History(t.Context()))
}

func testPublish(t *testing.T, bus Bus) {
	f, other := bus.Open(t), bus.Open(t)
	v := history(3)
	publish(t, f, store.Stored{}, v[0])
	wantHead(t, f, 1, v[0])
	publish(t, other, v[0], v[1])
	wantHead(t, f, 2, v[1])
	for _, expect := range []uint64{0, 1, 3} {
		wantErr(t, fmt.Sprintf("publish after sequence %d of 2", expect), tryPublish(t, f, updateOf(v[1], v[2]), expect, f.Generation()), store.ErrConflict)
	}
	wantHead(t, other, 2, v[1])
}

func testPublishRefused(t *testing.T, bus Bus) {
	f := bus.Open(t)
	v := history(1)[0]
	for name, u := range map[string]store.Update{
		"no manifest":       {},
		"no version":        {Manifest: &store.Manifest{Root: v.Manifest.Root}},
		"no root":           {Manifest: &store.Manifest{Version: v.Manifest.Version}},
		"rows out of order": {Manifest: v.Manifest, Delta: store.Delta{Remove: []string{"b", "a"}}},
	} {
		if tryPublish(t, f, u, 0, f.Generation()) == nil {
			t.Errorf("%s: Publish accepted it", name)
		}
	}
	wantHead(t, f, 0, store.Stored{})
}

// testOneChain races publishers: each version follows the one before it.
func testOneChain(t *testing.T, bus Bus) {
	const publishers, each = 4, 8
	feeds := make([]Feed, publishers)
	for i := range feeds {
		feeds[i] = bus.Open(t)
	}
	var wg sync.WaitGroup
	for i, f := range feeds {
		wg.Go(func() {
			for n := 0; n < each; {
				head, err := f.Head(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				var prev store.Stored
				if head.Manifest != nil {
					if prev, err = f.Fetch(t.Context(), head.Version()); err != nil {
						t.Error(err)
						return
					}
				}
				v := next(prev, ident.Position{Epoch: 1, Seq: head.Seq + 1}, rows{fmt.Sprintf("p%d", i): is("%d", n)})
				_, err = f.Publish(t.Context(), updateOf(prev, v), head.Seq, f.Generation())
				switch {
				case err == nil:
					n++
				case !errors.Is(err, store.ErrConflict):
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	var last *store.Manifest
	n := 0
	for m, err := range feeds[0].History(t.Context()) {
		must(t, err)
		if prev, root := store.PreviousOf(last); last != nil && (prev != store.VersionOf(m.GetVersion()) || root != store.RootOf(m)) {
			t.Fatalf("%s follows %s in the chain, but was made after %s", store.VersionOf(last.GetVersion()), store.VersionOf(m.GetVersion()), prev)
		}
		last = m
		n++
	}
	if n != publishers*each {
		t.Errorf("%d versions in the chain, want %d", n, publishers*each)
	}
}

func testBlobs(t *testing.T, bus Bus) {
	f, other := bus.Open(t), bus.Open(t)
	large := bytes.Repeat([]byte("0123456789abcde"), 200_000)
	for _, b := range [][]byte{{}, []byte("blob"), []byte("blob"), large} {
		h, err := f.PutBlob(t.Context(), b)
		must(t, err)
		if h != ident.HashOf(b) {
			t.Errorf("blob of %d bytes has name %s, want its hash", len(b), h)
		}
		got, err := other.GetBlob(t.Context(), h)
		must(t, err)
		if !bytes.Equal(got, b) {
			t.Errorf("blob of %d bytes came back with %d bytes, or with other ones", len(b), len(got))
		}
	}
	_, err := f.GetBlob(t.Context(), ident.HashOf([]byte("other")))
	wantErr(t, "a blob that is not there", err, store.ErrNotFound)
}

// largeRows returns rows that do not fit into a message.
func largeRows() rows {
	r := rows{}
	for i := range 3000 {
		r[fmt.Sprintf("big%d", i)] = is("%01000d", i)
	}
	return r
}

func testLargeDelta(t *testing.T, bus Bus) {
	f := bus.Open(t)
	v := history(2)
	large := next(v[1], ident.Position{Epoch: 1, Seq: 3}, largeRows())
	after := next(large, ident.Position{Epoch: 1, Seq: 4}, rows{"small": is("")})
	live := follow(t, f, v[0])
	publish(t, f, store.Stored{}, v[0], v[1])
	live.wantLinks(t, v[1])
	publish(t, f, v[1], large)
	live.wantLinks(t, large)
	publish(t, f, large, after)
	live.wantLinks(t, after)
	follow(t, f, v[1]).wantLinks(t, large, after)
	follow(t, f, store.Stored{}).wantNewest(t, f, after)
}

// withCheckpoint returns v with its content in the blobs of f.
func withCheckpoint(t *testing.T, f Feed, v store.Stored) store.Stored {
	t.Helper()
	c, err := new(store.CheckpointWriter).Write(t.Context(), f, v.Snapshot, v.Version())
	must(t, err)
	v.Manifest.Checkpoint = c
	return v
}

func testFetch(t *testing.T, bus Bus) {
	f := bus.Open(t)
	v := history(90)
	v[40] = withCheckpoint(t, f, v[40])
	v[89] = withCheckpoint(t, f, v[89])
	publish(t, f, store.Stored{}, v...)
	for _, i := range []int{0, 1, 39, 40, 41, 88, 89} {
		got, err := f.Fetch(t.Context(), v[i].Version())
		must(t, err)
		same(t, "fetched", got, v[i])
	}
	for _, no := range []ident.Position{{}, {Epoch: 1}, {Epoch: 1, Seq: 91}, {Epoch: 2, Seq: 1}} {
		wantNoFetch(t, f, no, store.ErrNotFound)
	}
}

// A builder writes a checkpoint after its version, so a later manifest names it,
// and the message of the version may have expired by then.
func testFetchLateCheckpoint(t *testing.T, bus Bus) {
	f := bus.Open(t)
	v := history(12)
	v[6].Manifest.Checkpoint = withCheckpoint(t, f, v[4]).Manifest.GetCheckpoint()
	v[4].Manifest.Checkpoint = nil
	publish(t, f, v[4], v[5:]...) // the first five are not on the chain
	for i := 6; i < len(v); i++ {
		got, err := f.Fetch(t.Context(), v[i].Version())
		must(t, err)
		same(t, "fetched", got, v[i])
	}
	wantNoFetch(t, f, v[5].Version(), store.ErrNotFound)
}

// Fetch fails if a part of the content is missing, or the root differs.
func testFetchLost(t *testing.T, bus Bus) {
	f := bus.Open(t)
	v := history(4)
	lost := ident.HashOf([]byte("lost"))
	v[2].Manifest.Checkpoint = &snapshotv1.Checkpoint{Rows: 1, Chunks: []*snapshotv1.ChunkRef{{Hash: lost[:], Size: 4}}}
	publish(t, f, v[0], v[1]) // the first one is not on the chain
	publish(t, f, v[1], v[2], v[3])
	for _, i := range []int{1, 2, 3} {
		wantNoFetch(t, f, v[i].Version(), store.ErrNotFound)
	}
	wrong := withCheckpoint(t, f, next(v[3], ident.Position{Epoch: 1, Seq: 5}, rows{"a": is("1")}))
	wrong.Manifest.Root = bytes.Repeat([]byte{1}, 32)
	publish(t, f, v[3], wrong)
	wantNoFetch(t, f, wrong.Version(), store.ErrCorrupt) // its root does not match its content
}

func testHistory(t *testing.T, bus Bus) {
	f := bus.Open(t)
	v := history(150)
	publish(t, f, store.Stored{}, v...)
	wantManifests(t, f.History(t.Context()), v...)
	for _, err := range f.History(t.Context()) {
		must(t, err)
		break
	}
}

func testUpdates(t *testing.T, bus Bus) {
	f := bus.Open(t)
	v := history(150)
	v = append(v, next(v[149], ident.Position{Epoch: 2, Seq: 3}, largeRows()))
	publish(t, f, store.Stored{}, v...)
	for _, c := range []struct {
		from ident.Position
		want []store.Stored
	}{
		{ident.Position{}, v},
		{v[100].Version(), v[100:]},
		{ident.Position{Epoch: 1, Seq: 1 << 40}, v[150:]}, // between two
		{ident.Position{Epoch: 3}, nil},
	} {
		at := store.Stored{}
		if len(c.want) > 0 && c.want[0].Version() != v[0].Version() {
			at = v[len(v)-len(c.want)-1]
		}
		n := 0
		for u, err := range f.Updates(t.Context(), c.from) {
			must(t, err)
			if n == len(c.want) {
				t.Fatalf("from %s: more than %d updates", c.from, n)
			}
			at = store.Stored{Manifest: u.Manifest, Snapshot: at.Snapshot.With(u.Delta)}
			same(t, fmt.Sprintf("from %s, update %d", c.from, n), at, c.want[n])
			n++
		}
		if n != len(c.want) {
			t.Fatalf("from %s: %d updates, want %d", c.from, n, len(c.want))
		}
	}
	for _, err := range f.Updates(t.Context(), ident.Position{}) { // a loop that stops gets no more updates
		must(t, err)
		break
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range f.Updates(ctx, ident.Position{}) {
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("cancelled: %v", err)
		}
	}
}

func testFollowFromZero(t *testing.T, bus Bus) {
	f := bus.Open(t)
	v := history(5)
	publish(t, f, store.Stored{}, v[:4]...)
	fo := follow(t, f, store.Stored{})
	fo.wantNewest(t, f, v[3])
	publish(t, f, v[3], v[4])
	fo.wantLinks(t, v[4])
}

func testFollowFromNear(t *testing.T, bus Bus) {
	f := bus.Open(t)
	v := history(40)
	publish(t, f, store.Stored{}, v...)
	for _, i := range []int{38, 37, 20, 0} {
		follow(t, f, v[i]).wantLinks(t, v[i+1:]...)
	}
}

func testFollowFromFar(t *testing.T, bus Bus) {
	f := bus.Open(t)
	v := history(400)
	publish(t, f, store.Stored{}, v...)
	follow(t, f, v[0]).wantNewest(t, f, v[399])
	follow(t, f, v[100]).wantNewest(t, f, v[399])
	follow(t, f, v[300]).wantLinks(t, v[301:]...)
}

// A follower with a version that was never on this chain fetches.
func testFollowFromElsewhere(t *testing.T, bus Bus) {
	f := bus.Open(t)
	v := history(4)
	v = append(v, next(v[3], ident.Position{Epoch: 5, Seq: 1}, rows{"epoch": is("5")}))
	publish(t, f, store.Stored{}, v...)
	for name, have := range map[string]store.Stored{
		"another epoch":   next(store.Stored{}, ident.Position{Epoch: 2, Seq: 1}, rows{"a": is("1")}),
		"another content": next(store.Stored{}, v[2].Version(), rows{"a": is("1")}),
		"between two":     next(v[3], ident.Position{Epoch: 4, Seq: 9}, rows{"a": is("1")}),
	} {
		t.Run(name, func(t *testing.T) { follow(t, f, have).wantNewest(t, f, v[4]) })
	}
	// Links lead from one epoch to the next.
	follow(t, f, v[2]).wantLinks(t, v[3], v[4])
}

func testFollowLive(t *testing.T, bus Bus) {
	f := bus.Open(t)
	v := history(60)
	readers := []*follower{follow(t, f, v[0]), follow(t, bus.Open(t), v[0]), follow(t, bus.Open(t), v[0])}
	publish(t, f, store.Stored{}, v[0])
	var wg sync.WaitGroup
	for i, fo := range readers {
		wg.Go(func() {
			for seen := 1; seen < len(v); {
				links, err := fo.next(t)
				if err != nil {
					t.Errorf("reader %d: %v", i, err)
					return
				}
				for _, u := range links {
					fo.have = store.Stored{Manifest: u.Manifest, Snapshot: fo.have.Snapshot.With(u.Delta)}
					if fo.have.Version() != v[seen].Version() || fo.have.Snapshot.Root() != v[seen].Snapshot.Root() {
						t.Errorf("reader %d: link to %s, root %s; want %s, root %s", i,
							fo.have.Version(), fo.have.Snapshot.Root(), v[seen].Version(), v[seen].Snapshot.Root())
						return
					}
					seen++
				}
			}
		})
	}
	publish(t, f, v[0], v[1:]...)
	wg.Wait()
}

func testFollowCancelled(t *testing.T, bus Bus) {
	f := bus.Open(t)
	v := history(1)
	publish(t, f, store.Stored{}, v...)
	fo := follow(t, f, v[0])
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := fo.Next(ctx, v[0].Version(), v[0].Snapshot.Root())
		done <- err
	}()
	cancel()
	wantErr(t, "next", <-done, context.Canceled)
}

// A follower ahead of the head gets one error per head.
func testMismatchAhead(t *testing.T, bus Bus) { mismatch(t, bus, history(4)[3]) }

// A follower that has other content at the head's version gets one error per head.
func testMismatchContent(t *testing.T, bus Bus) {
	mismatch(t, bus, next(store.Stored{}, history(3)[2].Version(), rows{"a": is("1")}))
}

func mismatch(t *testing.T, bus Bus, have store.Stored) {
	f := bus.Open(t)
	v := history(3)
	publish(t, f, store.Stored{}, v...)
	fo := follow(t, f, have)
	fo.wantMismatch(t, v[2])
	after := next(v[2], ident.Position{Epoch: 2, Seq: 1}, rows{"b": is("")})
	publish(t, f, v[2], after)
	fo.wantNewest(t, f, after) // no second error for the old head
}

func (f *follower) wantMismatch(t *testing.T, head store.Stored) {
	t.Helper()
	_, err := f.next(t)
	var m *store.MismatchError
	if !errors.As(err, &m) {
		t.Fatalf("next: %v, want a MismatchError", err)
	}
	want := store.MismatchError{Have: f.have.Version(), Root: f.have.Snapshot.Root(), Head: head.Version(), HeadRoot: head.Snapshot.Root()}
	if *m != want {
		t.Fatalf("next: %v; want %v", m, &want)
	}
}

func testExpired(t *testing.T, bus Bus) {
	f := bus.Open(t)
	v := history(5)
	publish(t, f, store.Stored{}, v[:3]...)
	fo := follow(t, f, v[2])
	bus.Expire(t)
	wantHead(t, f, 3, store.Stored{})
	wantNoFetch(t, f, v[2].Version(), store.ErrNotFound)
	wantManifests(t, f.History(t.Context()))
	wantErr(t, "publish as if the chain had never been written", tryPublish(t, f, updateOf(v[2], v[3]), 0, f.Generation()), store.ErrConflict)
	// An epoch begins; its first version has a checkpoint.
	begin := withCheckpoint(t, f, next(v[2], ident.Position{Epoch: 9, Seq: 5}, rows{"epoch": is("9")}))
	publish(t, f, v[2], begin)
	wantHead(t, f, 4, begin)
	fo.wantLinks(t, begin)
	follow(t, f, v[1]).wantNewest(t, f, begin)
}

func testReconnect(t *testing.T, bus Bus) {
	f := bus.Open(t)
	v := history(4)
	publish(t, f, store.Stored{}, v[0], v[1])
	fo := follow(t, f, v[0])
	fo.wantLinks(t, v[1])
	was := f.Generation()
	bus.Renew(t, f)
	if f.Generation() == was {
		t.Error("the connection was renewed, the generation is the same")
	}
	wantErr(t, "publish with the generation before", tryPublish(t, f, updateOf(v[1], v[2]), 2, was), store.ErrReconnected)
	wantHead(t, f, 2, v[1])
	publish(t, f, v[1], v[2], v[3])
	fo.wantLinks(t, v[2], v[3])
}

func testRewind(t *testing.T, bus Bus) {
	f := bus.Open(t)
	v := history(5)
	publish(t, f, store.Stored{}, v[0], v[1])
	rewind := bus.Image(t)
	publish(t, f, v[1], v[2], v[3])
	fo := follow(t, f, v[1])
	fo.wantLinks(t, v[2], v[3])
	was := f.Generation()
	rewind()
	if f.Generation() == was {
		t.Error("the chain was rewound, the generation is the same")
	}
	wantHead(t, f, 2, v[1])
	fo.wantMismatch(t, v[1])
	// The chain reuses the sequences for other messages.
	again := next(v[1], ident.Position{Epoch: 2, Seq: 3}, rows{"again": is("1")})
	publish(t, f, v[1], again)
	fo.wantNewest(t, f, again)
	then := next(again, ident.Position{Epoch: 2, Seq: 4}, rows{"again": is("2")})
	publish(t, f, again, then)
	fo.wantLinks(t, then)
}

// BUS-4: the newest message of the chain is no version. The head is the last good
// one, the next version follows it, and no reader sees the message in between.
func testForeign(t *testing.T, bus Bus) {
	f := bus.Open(t)
	v := history(4)
	v[1] = withCheckpoint(t, f, v[1])
	publish(t, f, store.Stored{}, v...)
	head, err := f.Head(t.Context())
	must(t, err)
	ways := bus.Foreign(t)
	elsewhere := next(store.Stored{}, ident.Position{Epoch: 1, Seq: 900}, rows{"a": is("1")})
	for name, u := range map[string]store.Update{
		"a version that follows none":           updateOf(store.Stored{}, elsewhere),
		"a version that follows another chain":  updateOf(elsewhere, next(elsewhere, ident.Position{Epoch: 7, Seq: 901}, rows{"a": is("2")})),
		"the head once more":                    updateOf(v[2], v[3]),
		"an earlier version once more":          updateOf(v[0], v[1]),
		"a second version after an earlier one": updateOf(v[1], next(v[1], ident.Position{Epoch: 1, Seq: 902}, rows{"a": is("3")})),
	} {
		ways[name] = func() { bus.Inject(t, u) }
	}
	seq, live := head.Seq, follow(t, f, v[3])
	foreign := 0
	for _, name := range slices.Sorted(maps.Keys(ways)) {
		last := v[len(v)-1]
		for range 3 { // a reader that goes back meets several
			ways[name]()
			seq++
			foreign++
		}
		if all, err := f.Foreign(t.Context()); err != nil || len(all) != foreign || all[0].Seq != seq || all[0].Reason == nil {
			t.Errorf("%s: %d messages are no versions (%v), want %d, the newest one at %d", name, len(all), err, foreign, seq)
		}
		wantForeign(t, name, bus, f, seq, 3, v)
		after := next(last, ident.Position{Epoch: 1, Seq: last.Version().Seq + 2}, rows{"after": is("%s", name)})
		publish(t, f, last, after)
		v, seq = append(v, after), seq+1
		live.wantLinks(t, after)
		wantForeign(t, name+", and a version", bus, f, seq, 0, v)
	}
}

// wantForeign fails unless all readers see the versions v and nothing else, and
// the head says how many other messages are behind it.
func wantForeign(t *testing.T, name string, bus Bus, f Feed, seq uint64, foreign int, v []store.Stored) {
	t.Helper()
	newest := v[len(v)-1]
	for _, f := range []Feed{f, bus.Open(t)} {
		head, err := f.Head(t.Context())
		must(t, err)
		if head.Seq != seq || head.Version() != newest.Version() {
			t.Fatalf("%s: the head is %s at sequence %d, want %s at %d", name, head.Version(), head.Seq, newest.Version(), seq)
		}
		switch e := head.Foreign; {
		case e == nil && foreign > 0:
			t.Errorf("%s: the head does not say that the newest messages are no versions", name)
		case e != nil && (e.Messages != foreign || e.Seq != seq || e.Reason == nil):
			t.Errorf("%s: %v (%d messages); want %d, the newest one at %d", name, e, e.Messages, foreign, seq)
		}
	}
	for _, i := range []int{0, len(v) - 1} {
		got, err := f.Fetch(t.Context(), v[i].Version())
		must(t, err)
		same(t, name+": fetched", got, v[i])
	}
	wantManifests(t, f.History(t.Context()), v...)
	n := 0
	for u, err := range f.Updates(t.Context(), ident.Position{}) {
		must(t, err)
		if n == len(v) || store.VersionOf(u.Manifest.GetVersion()) != v[n].Version() {
			t.Fatalf("%s: update %d is %v", name, n, u.Manifest.GetVersion())
		}
		n++
	}
	if n != len(v) {
		t.Errorf("%s: %d updates, want %d", name, n, len(v))
	}
	follow(t, bus.Open(t), v[0]).wantLinks(t, v[1:]...)
	follow(t, bus.Open(t), store.Stored{}).wantNewest(t, f, newest)
}

func testForeignOnly(t *testing.T, bus Bus) {
	f := bus.Open(t)
	seq := uint64(0)
	for _, write := range bus.Foreign(t) {
		write()
		seq++
	}
	wantHead(t, f, seq, store.Stored{})
	wantManifests(t, f.History(t.Context()))
	fo := follow(t, f, store.Stored{})
	v := history(1)[0]
	publish(t, f, store.Stored{}, v)
	fo.wantNewest(t, f, v)
}
