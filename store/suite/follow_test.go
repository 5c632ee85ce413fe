package suite

import (
	"context"
	"errors"
	"sync"
	"testing"

	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

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
