package suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
