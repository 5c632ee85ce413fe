package natsfeed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/deploy/testkit/natstest"
	"meshlog.dev/proto/ident"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/store"
)

// sweepFeed opens a chain on a server of its own.
func sweepFeed(t *testing.T, maxAge time.Duration) *Feed {
	t.Helper()
	nc := natstest.Start(t).Connect(t)
	if _, err := EnsureStreams(t.Context(), nc, StreamOptions{MaxAge: maxAge}); err != nil {
		t.Fatal(err)
	}
	f, err := Open(t.Context(), nc, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func put(t *testing.T, f *Feed, content string) ident.Hash {
	t.Helper()
	h, err := f.PutBlob(t.Context(), []byte(content))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func has(t *testing.T, f *Feed, h ident.Hash) bool {
	t.Helper()
	_, err := f.GetBlob(t.Context(), h)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		t.Fatal(err)
	}
	return err == nil
}

func checkpointOf(hs ...ident.Hash) *snapshotv1.Checkpoint {
	c := &snapshotv1.Checkpoint{Version: store.VersionProto(ident.Position{Epoch: 1, Seq: 1})}
	for _, h := range hs {
		c.Chunks = append(c.Chunks, &snapshotv1.ChunkRef{Hash: h[:], Size: 1})
	}
	return c
}

// Sweep deletes only blobs that no version or base names, and only once they are
// old enough.
func TestSweep(t *testing.T) {
	f := sweepFeed(t, 0)
	content, fold, delta, chunk := put(t, f, "content"), put(t, f, "fold"), put(t, f, "delta"), put(t, f, "a base's chunk")
	b, err := store.EncodeCheckpoint(checkpointOf(chunk))
	if err != nil {
		t.Fatal(err)
	}
	base, stray := put(t, f, string(b)), put(t, f, "stray")
	u := store.Update{Manifest: &store.Manifest{
		Version: store.VersionProto(ident.Position{Epoch: 1, Seq: 1}), RecordHash: make([]byte, 32), Root: make([]byte, 32),
		Checkpoint: checkpointOf(content), FoldCheckpoint: checkpointOf(fold),
	}}
	m, err := store.EncodeUpdate(u, delta)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.js.Publish(t.Context(), f.subject, m, jetstream.WithExpectStream(Stream)); err != nil {
		t.Fatal(err)
	}
	// A failed write has left chunks.
	if _, err := f.js.Publish(t.Context(), blobChunks+"FAILED", []byte("x")); err != nil {
		t.Fatal(err)
	}

	if got, err := f.Sweep(t.Context(), time.Hour, []ident.Hash{base}); err != nil || got.Blobs != 0 || got.Kept != 6 {
		t.Fatalf("a sweep of young blobs: %+v, %v", got, err)
	}
	got, err := f.Sweep(t.Context(), 0, []ident.Hash{base})
	if want := (Swept{Blobs: 1, Bytes: 5, Kept: 5}); err != nil || got != want {
		t.Errorf("swept %+v, %v; want %+v", got, err, want)
	}
	for name, h := range map[string]ident.Hash{"content": content, "fold": fold, "delta": delta, "base": base, "chunk": chunk} {
		if !has(t, f, h) {
			t.Errorf("the %s was deleted", name)
		}
	}
	if has(t, f, stray) {
		t.Error("a blob that nothing names was kept")
	}
	all, err := f.blobList(t.Context())
	if err != nil || len(all.nuids) != 5 {
		t.Errorf("%d blobs have bytes, %v; want 5", len(all.nuids), err)
	}
	if h := put(t, f, "stray"); !has(t, f, h) {
		t.Error("a deleted blob cannot be put again")
	}
}

// A blob that a writer puts again during any step of a sweep stays.
func TestSweepRacesWithWriter(t *testing.T) {
	f := sweepFeed(t, 0)
	h := put(t, f, "x")
	all, err := f.blobList(t.Context())
	if err != nil || len(all.blobs) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	// Put again after the sweep has listed it.
	if _, err := f.blobs.PutBytes(t.Context(), h.String(), []byte("x")); err != nil {
		t.Fatal(err)
	}
	if deleted, err := f.deleteBlob(t.Context(), all.blobs[0]); deleted || err != nil {
		t.Errorf("deleted %v, %v: it was put again", deleted, err)
	}
	if err := f.sweepChunks(t.Context(), all, map[string]bool{}, 0); err != nil {
		t.Fatal(err)
	}
	if !has(t, f, h) {
		t.Fatal("a blob that was put again is gone")
	}

	// A sweep that ends between its steps leaves chunks without a blob.
	all, err = f.blobList(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := f.purge(t.Context(), all.blobs[0].subject, all.blobs[0].seq+1); n != 1 || err != nil {
		t.Fatalf("purged %d, %v", n, err)
	}
	if has(t, f, h) {
		t.Error("the blob can be read although its metadata was purged")
	}
	put(t, f, "x") // writes new chunks
	if _, err := f.Sweep(t.Context(), time.Hour, nil); err != nil {
		t.Fatal(err)
	}
	if !has(t, f, h) {
		t.Error("a blob that was put again is gone")
	}
}

// The requested versions may expire before they are read. If the server returns a
// newer version instead, it does not lag, so the visit succeeds.
func TestVisitVersions(t *testing.T) {
	f := sweepFeed(t, 0)
	for seq := range uint64(3) {
		u := store.Update{Manifest: &store.Manifest{
			Version: store.VersionProto(ident.Position{Epoch: 1, Seq: seq + 1}), RecordHash: make([]byte, 32), Root: make([]byte, 32),
		}}
		m, err := store.EncodeUpdate(u, ident.Hash{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.js.Publish(t.Context(), f.subject, m, jetstream.WithExpectStream(Stream)); err != nil {
			t.Fatal(err)
		}
	}
	stream, err := f.js.Stream(t.Context(), Stream)
	if err != nil {
		t.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	cfg.MaxMsgs = 1
	if _, err := f.js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	var seen []uint64
	visit := func(m message) { seen = append(seen, m.seq) }
	if err := f.visitVersions(t.Context(), 1, 2, visit); err != nil || !slices.Equal(seen, []uint64{3}) {
		t.Errorf("visited %v, %v; want the version behind the expired ones", seen, err)
	}
	if err := f.visitVersions(t.Context(), 1, 4, visit); err == nil {
		t.Error("the server lags, and the visit did not fail")
	}
}

// A writer and a sweep run at once. No blob that was just written is deleted.
func TestSweepConcurrently(t *testing.T) {
	f := sweepFeed(t, time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			if _, err := f.Sweep(ctx, time.Hour, nil); err != nil && ctx.Err() == nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for i := range 100 {
		h := put(t, f, fmt.Sprint("blob ", i%7))
		if !has(t, f, h) {
			t.Fatalf("blob %d is gone", i)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// PutBlob writes a blob again when half of its age is over, because a sweep may be
// about to delete it.
func TestPutOldBlob(t *testing.T) {
	f := sweepFeed(t, time.Hour)
	f.stream.CachedInfo().Config.MaxAge = time.Nanosecond // every blob counts as old
	h := put(t, f, "x")
	seq := func() uint64 {
		t.Helper()
		all, err := f.blobList(t.Context())
		if err != nil || len(all.blobs) != 1 {
			t.Fatalf("%+v, %v", all, err)
		}
		return all.blobs[0].seq
	}
	first := seq()
	put(t, f, "x")
	if seq() <= first {
		t.Error("an old blob is not put again")
	}
	if !has(t, f, h) {
		t.Error("it is gone")
	}
}
