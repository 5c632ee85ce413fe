package builder

import (
	"errors"
	"testing"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/store"
)

// The base of a segment on the log is kept, even if no version names it.
func TestSweepKeepsBases(t *testing.T) {
	k, chain := openKeeper(t)
	log := k.events

	put := func(b []byte) ident.Hash {
		t.Helper()
		h, err := chain.PutBlob(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	chunk, forgotten := put([]byte("what the base holds")), put([]byte("what no record names"))
	checkpoint, err := store.EncodeCheckpoint(&snapshotv1.Checkpoint{
		Version: store.VersionProto(ident.Position{Epoch: 1, Seq: 1}), Chunks: []*snapshotv1.ChunkRef{{Hash: chunk[:]}},
	})
	if err != nil {
		t.Fatal(err)
	}
	base := put(checkpoint)
	for _, s := range []*events.Segment{{Epoch: 1, Build: "a"}, {Epoch: 2, Build: "b", Base: base}} {
		if _, err := log.Append(t.Context(), []events.Event{{ID: s.Build, Body: s}}, events.Fence{}); err != nil {
			t.Fatal(err)
		}
	}

	done, err := (&sweeper{log: log, chain: chain, logger: quiet}).sweep(t.Context()) // History is zero: every age counts as old
	if err != nil || done.Blobs != 1 || done.Kept != 2 {
		t.Errorf("%+v, %v; want 1 deleted, 2 kept", done, err)
	}
	for h, there := range map[ident.Hash]bool{chunk: true, base: true, forgotten: false} {
		if _, err := chain.GetBlob(t.Context(), h); there && err != nil || !there && !errors.Is(err, store.ErrNotFound) {
			t.Errorf("blob %s: %v, want it there: %v", h, err, there)
		}
	}
}
