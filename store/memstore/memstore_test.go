package memstore_test

import (
	"testing"

	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
	"meshlog.dev/store/memstore"
)

// Poll in one thread returns the same as Next.
func TestPoll(t *testing.T) {
	c := memstore.NewChain()
	f := c.Follower()
	if links, ok, err := f.Poll(ident.Position{}, ident.Hash{}); ok || err != nil {
		t.Fatalf("poll of an empty chain: %v, %t, %v", links, ok, err)
	}
	s := (*store.Snapshot)(nil).With(store.Delta{Put: []store.Row{{Key: "a"}}})
	root := s.Root()
	v := ident.Position{Epoch: 1, Seq: 7}
	u := store.Update{Manifest: &store.Manifest{Version: store.VersionProto(v), Root: root[:]}, Delta: store.Diff(nil, s)}
	if _, err := c.Publish(t.Context(), u, 0, c.Generation()); err != nil {
		t.Fatal(err)
	}
	if links, ok, err := f.Poll(ident.Position{}, ident.Hash{}); !ok || len(links) != 1 || err != nil {
		t.Fatalf("poll after a publish: %v, %t, %v", links, ok, err)
	}
	if links, ok, err := f.Poll(v, root); ok || err != nil {
		t.Fatalf("poll at the head: %v, %t, %v", links, ok, err)
	}
	ahead := ident.Position{Epoch: 2}
	if _, ok, err := f.Poll(ahead, root); ok || err == nil {
		t.Fatalf("poll from ahead of the head: %t, %v; want a mismatch", ok, err)
	}
	if _, ok, err := f.Poll(ahead, root); ok || err != nil {
		t.Fatalf("the second poll: %t, %v; want nothing new", ok, err)
	}
}
