package storetest

import (
	"testing"

	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

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
	// The chain uses the same sequences again, for other messages.
	again := next(v[1], ident.Position{Epoch: 2, Seq: 3}, rows{"again": is("1")})
	publish(t, f, v[1], again)
	fo.wantNewest(t, f, again)
	then := next(again, ident.Position{Epoch: 2, Seq: 4}, rows{"again": is("2")})
	publish(t, f, again, then)
	fo.wantLinks(t, then)
}
