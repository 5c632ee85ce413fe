package memstore_test

import (
	"iter"
	"testing"

	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
	"meshlog.dev/store/memstore"
	"meshlog.dev/store/storetest"
)

type disk struct{ file *memstore.File }

func (d disk) Open(_ *testing.T, r store.Retention) store.Store { return memstore.Open(d.file, r) }

// Crashes has one step, because a write is atomic.
func (d disk) Crashes(_ *testing.T, r store.Retention, write func(store.Store)) iter.Seq2[string, storetest.Disk] {
	return func(yield func(string, storetest.Disk) bool) {
		before := d.file.Clone()
		s := memstore.Open(d.file, r)
		write(s)
		s.Close()
		_ = yield("not persisted", disk{before}) && yield("persisted", disk{d.file.Clone()})
	}
}

func TestStore(t *testing.T) {
	storetest.Stores(t, func(*testing.T) storetest.Disk { return disk{new(memstore.File)} })
}

type bus struct{ chain *memstore.Chain }

func (b bus) Open(*testing.T) storetest.Feed       { return b.chain }
func (b bus) Renew(_ *testing.T, f storetest.Feed) { f.(*memstore.Chain).Reconnect() }
func (b bus) Expire(*testing.T)                    { b.chain.Expire() }

func (b bus) Image(t *testing.T) (rewind func()) {
	head, err := b.chain.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return func() { b.chain.Rewind(head.Seq) }
}

func TestChain(t *testing.T) {
	storetest.Chains(t, func(*testing.T) storetest.Bus { return bus{memstore.NewChain()} })
}

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
