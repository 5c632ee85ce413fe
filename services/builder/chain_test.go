package builder

import (
	"testing"
	"time"

	"meshlog.dev/store"
	"meshlog.dev/store/memstore"
)

// A publish is fenced on the head: the builder that loses publishes nothing, and
// then knows the winner's head.
func TestPublishIsFenced(t *testing.T) {
	r, a := servingA(t)
	b := r.start(r.config("b1", "one", &memstore.File{}), true)
	b.settle()
	r.put("a", "good 2")
	for _, d := range []*driver{a, b} {
		recs, err := r.log.ReadAfter(d.after, 1000)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Read(t.Context(), recs); err != nil {
			t.Fatal(err)
		}
	}
	for i, d := range []*driver{a, b} {
		before, _, err := d.chain.contentOfHead(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		published, err := d.chain.publish(t.Context(), store.Diff(before, d.ledger.Content()), nil)
		if err != nil || published != (i == 0) {
			t.Errorf("%s published: %v, %v", d.cfg.ID, published, err)
		}
		if by := d.chain.head.Manifest.GetPublisher(); by != "b0" || d.chain.head.Version() != d.Position() {
			t.Errorf("%s has the head %s published by %s, want the head of b0", d.cfg.ID, d.chain.head.Version(), by)
		}
	}
	if b.stats.Conflicts != 1 || a.stats.Conflicts != 0 {
		t.Errorf("b0 lost %d fences and b1 %d, want 0 and 1", a.stats.Conflicts, b.stats.Conflicts)
	}
}

// The builder commits a version to its file only after the chain has it.
func TestTheFileIsNeverAheadOfTheChain(t *testing.T) {
	r, b := servingA(t)
	was := b.chain.file.stored.Version()
	r.put("a", "good 2")
	recs, err := r.log.ReadAfter(b.after, 1000)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Read(t.Context(), recs); err != nil {
		t.Fatal(err)
	}
	if published, err := b.chain.publish(t.Context(), store.Delta{Put: store.Diff(b.chain.content.Snapshot, b.ledger.Content()).Put}, nil); err != nil || !published {
		t.Fatal(published, err)
	}
	if at := b.chain.file.stored.Version(); at != was {
		t.Errorf("the file has %s before the fold was compared with the head, want %s", at, was)
	}
	if err := b.Advance(t.Context()); err != nil { // as a restarted builder does
		t.Fatal(err)
	}
	if at, head := b.chain.file.stored.Version(), b.chain.head.Version(); at != head || b.Filed() != head {
		t.Errorf("the file has %s and the fold of %s, want the head %s", at, b.Filed(), head)
	}
}

func TestWorthAVersion(t *testing.T) {
	r, b := servingA(t)
	worth := func(when string, want bool) {
		t.Helper()
		if got := b.chain.worthAVersion(); got != want {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	worth("at the head", false)
	r.put("a", "good 1")
	recs, err := r.log.ReadAfter(b.after, 1000)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Read(t.Context(), recs); err != nil {
		t.Fatal(err)
	}
	worth("the same content at a later position", false)
	r.mu.Lock()
	r.now = r.now.Add(CheckpointEvery(8 * 24 * time.Hour))
	r.mu.Unlock()
	worth("the same content, and the head is old", true)
	b.chain.setHead(store.Head{})
	worth("without a head", true)
}
