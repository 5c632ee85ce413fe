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

// The record that began the epoch has expired, but a later segment of the epoch has
// not. A builder of another build starts without a file. It can resume nowhere, so
// it begins a new epoch whose base is the content of the head.
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
		t.Errorf("the builder is at %s, want a new epoch", at)
	}
	if diff := cmp.Diff(map[string]string{"a": "good 1", "b": "good 2"}, r.served()); diff != "" {
		t.Errorf("served (-want +got):\n%s", diff)
	}
}

// forgetful is a chain that has lost its blobs. It returns only blobs that were put
// through it.
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

// The base of the epoch is lost, and a builder without a file leads. It begins a new
// epoch whose base is the content of the head.
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
		t.Fatalf("at first: %v, want ErrNotFound: the base may still arrive", err)
	}
	for range 3 {
		r.now = r.now.Add(lostAfter)
		b.connected = false
		_ = b.step() // the builder finds one lost base after the other
	}
	r.list()
	b.settle()
	if at := b.Position(); at.Epoch <= old.Epoch {
		t.Errorf("the builder is at %s, want an epoch after %s", at, old)
	}
	wantServed(t, r, map[string]string{"a": "good 1", "b": "good 1"})
}
