package suite

import (
	"maps"
	"slices"
	"testing"

	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

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
