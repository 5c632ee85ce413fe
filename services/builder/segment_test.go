package builder

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
	"meshlog.dev/store/memstore"
)

// The record that began the epoch expired, a later segment of it did not, and a
// builder of another build comes without a file: there is nothing to resume at,
// and what the head serves is the base of a new epoch.
func TestEpochRecordExpired(t *testing.T) {
	r, _ := servingA(t)
	old := r.versions()[0].GetVersion().GetEpoch()
	two := r.start(r.config("b1", "two", &memstore.File{}), true)
	two.settle()
	r.put("b", "good 2")
	two.settle()
	bounds, err := r.log.Bounds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rec, err := r.log.Last(t.Context(), events.SegmentSubject)
	if err != nil || rec.Seq == 1 {
		t.Fatalf("the last segment is record %d, %v", rec.Seq, err)
	}
	r.log.Trim(rec.Seq)

	three := r.start(r.config("b2", "three", &memstore.File{}), true)
	three.settle()
	r.list()
	three.settle()
	if at := three.Position(); at.Epoch <= old || at.Seq <= bounds.Last {
		t.Errorf("it stands at %s, want a new epoch", at)
	}
	if diff := cmp.Diff(map[string]string{"a": "good 1", "b": "good 2"}, r.served()); diff != "" {
		t.Errorf("served (-want +got):\n%s", diff)
	}
}

// forgetful is a chain that has lost its blobs: it has those that were put
// since.
type forgetful struct {
	*memstore.Chain
	put map[ident.Hash]bool
}

func (f *forgetful) PutBlob(ctx context.Context, b []byte) (ident.Hash, error) {
	h, err := f.Chain.PutBlob(ctx, b)
	f.put[h] = err == nil
	return h, err
}

func (f *forgetful) GetBlob(ctx context.Context, h ident.Hash) ([]byte, error) {
	if !f.put[h] {
		return nil, store.ErrNotFound
	}
	return f.Chain.GetBlob(ctx, h)
}

// What an epoch stands on is lost, and a builder without a file leads: what the
// head serves is the base of a new epoch.
func TestBaseOfTheEpochIsLost(t *testing.T) {
	r, b := servingA(t)
	r.put("b", "good 1")
	b.settle()
	for range 2 { // epochs begin, each with a base
		r.log.Rewind(r.bounds().Last - 1)
		b.settle()
		r.list()
		b.settle()
	}
	old := b.Position()

	c := r.config("b1", "one", &memstore.File{})
	c.Feed = &forgetful{r.chain, map[ident.Hash]bool{}}
	b = r.start(c, true)
	if err := b.step(); !errors.Is(err, store.ErrNotFound) {
		t.Fatalf("at first: %v, want ErrNotFound: it may be on its way", err)
	}
	for range 3 {
		r.now = r.now.Add(lostAfter)
		b.connected = false
		_ = b.step() // one base after the other is found to be lost
	}
	r.list()
	b.settle()
	if at := b.Position(); at.Epoch <= old.Epoch {
		t.Errorf("it stands at %s, want an epoch after %s", at, old)
	}
	wantServed(t, r, map[string]string{"a": "good 1", "b": "good 1"})
}
