package store_test

import (
	"bytes"
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"meshlog.dev/proto/ident"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/store"
)

// exampleManifest returns the manifest that the README prints.
func exampleManifest() *store.Manifest {
	s := build(map[string]string{"v/file/demo/Resource/shop/reviews": "the value"})
	root, was, record := s.Root(), ident.Hash{}, ident.HashOf([]byte("a record"))
	chunk := ident.HashOf([]byte("a chunk"))
	return &store.Manifest{
		Version:      store.VersionProto(ident.Position{Epoch: 1735787045, Seq: 42}),
		RecordHash:   record[:],
		RecordTime:   timestamppb.New(time.Date(2025, 1, 2, 3, 4, 5, 678_000_000, time.UTC)),
		Previous:     store.VersionProto(ident.Position{Epoch: 1735787045, Seq: 40}),
		PreviousRoot: was[:],
		Root:         root[:],
		Build:        "v0.1.0",
		Watermark:    []*snapshotv1.Watermark{{Source: "file", Instance: "demo", Seq: 42, Synced: true}},
		Changes:      []*snapshotv1.KeyChange{{Key: "v/file/demo/Resource/shop/reviews", Seq: 42}},
		ChangeCount:  1,
		Checkpoint:   &snapshotv1.Checkpoint{Rows: 1, Version: store.VersionProto(ident.Position{Epoch: 1735787045, Seq: 42}), Chunks: []*snapshotv1.ChunkRef{{Hash: chunk[:], Size: 46}}},
		PublishTime:  timestamppb.New(time.Date(2025, 1, 2, 3, 4, 5, 690_000_000, time.UTC)),
		Publisher:    "builder-1",
	}
}

func TestUpdateRoundTrip(t *testing.T) {
	for seed := range uint64(100) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		u := store.Update{Manifest: exampleManifest(), Delta: randomDelta(rnd, map[string]string{}, 50, 100)}
		b, err := store.EncodeUpdate(u, ident.Hash{})
		if err != nil {
			t.Fatal(err)
		}
		got, blob, err := store.DecodeUpdate(b)
		if err != nil || !blob.IsZero() {
			t.Fatalf("decode: blob %s, %v", blob, err)
		}
		if diff := cmp.Diff(u, got, protocmp.Transform(), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("round trip (-want +got):\n%s", diff)
		}
		if again, _ := store.EncodeUpdate(got, ident.Hash{}); !bytes.Equal(again, b) {
			t.Fatal("the same update has other bytes")
		}
		if m, err := store.DecodeUpdateManifest(b); err != nil || !proto.Equal(m, u.Manifest) {
			t.Fatalf("manifest alone: %v, %v", m, err)
		}
	}
	u := store.Update{Manifest: exampleManifest()}
	name := ident.HashOf([]byte("delta"))
	b, err := store.EncodeUpdate(u, name)
	if err != nil {
		t.Fatal(err)
	}
	if got, blob, err := store.DecodeUpdate(b); err != nil || blob != name || !got.Delta.IsEmpty() {
		t.Errorf("update with a delta blob: %v, blob %s, %v", got, blob, err)
	}
}

// Encodings never change, because blobs are named by their hashes.
func TestDeltaBytesAreFixed(t *testing.T) {
	const want = "0a060a0161120131" + "0a030a0162" + "120163"
	b, err := store.EncodeDelta(store.Delta{Put: []store.Row{{Key: "a", Value: []byte("1")}, {Key: "b"}}, Remove: []string{"c"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(b); got != want {
		t.Errorf("delta is %s, want %s", got, want)
	}
}

func TestDecodeRefuses(t *testing.T) {
	wire := func(m proto.Message) []byte {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	update := func(spoil func(u *snapshotv1.Update)) []byte {
		u := &snapshotv1.Update{Manifest: exampleManifest(), Delta: &snapshotv1.Delta{}}
		spoil(u)
		return wire(u)
	}
	row := func(key string) *snapshotv1.Row { return &snapshotv1.Row{Key: key} }
	tests := []struct {
		name  string
		bytes []byte
		want  string
	}{
		{"no protobuf", []byte{0xff}, "update: "},
		{"nothing", nil, "version: is missing"},
		{"no manifest", update(func(u *snapshotv1.Update) { u.Manifest = nil }), "version: is missing"},
		{"no delta", update(func(u *snapshotv1.Update) { u.Delta = nil }), "delta: is missing"},
		{"two deltas", update(func(u *snapshotv1.Update) { u.DeltaBlob = make([]byte, 32) }), "delta_blob: must be absent beside a delta"},
		{"a short blob name", update(func(u *snapshotv1.Update) { u.Delta, u.DeltaBlob = nil, []byte("short") }), "delta_blob: hash of 5 bytes"},
		{"no root", update(func(u *snapshotv1.Update) { u.Manifest.Root = nil }), "root: has 0 bytes"},
		{"a short previous root", update(func(u *snapshotv1.Update) { u.Manifest.PreviousRoot = []byte{1} }), "previous_root: hash of 1 bytes"},
		{"previous after version", update(func(u *snapshotv1.Update) { u.Manifest.Previous = u.Manifest.Version }), "previous: is 1735787045.42, must be smaller"},
		{"a short chunk name", update(func(u *snapshotv1.Update) { u.Manifest.Checkpoint.Chunks[0].Hash = nil }), "checkpoint: chunks[0].hash: has 0 bytes"},
		{"put out of order", update(func(u *snapshotv1.Update) { u.Delta.Put = []*snapshotv1.Row{row("b"), row("a")} }), `put[1]: "a" must come before "b"`},
		{"put twice", update(func(u *snapshotv1.Update) { u.Delta.Put = []*snapshotv1.Row{row("a"), row("a")} }), `put[1]: "a" must come before "a", and only once`},
		{"removed out of order", update(func(u *snapshotv1.Update) { u.Delta.Remove = []string{"b", "a"} }), `remove[1]: "a" must come before "b"`},
		{"put and removed", update(func(u *snapshotv1.Update) {
			u.Delta.Put, u.Delta.Remove = []*snapshotv1.Row{row("a"), row("c")}, []string{"b", "c"}
		}), `remove[1]: "c" is put as well`},
	}
	for _, tt := range tests {
		if _, _, err := store.DecodeUpdate(tt.bytes); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want one with %q", tt.name, err, tt.want)
		}
		alone := strings.HasPrefix(tt.want, "delta") || strings.HasPrefix(tt.want, "put") || strings.HasPrefix(tt.want, "remove")
		if _, err := store.DecodeUpdateManifest(tt.bytes); (err == nil) != alone {
			t.Errorf("%s: the manifest alone: error %v", tt.name, err)
		}
	}
}

func FuzzDecodeUpdate(f *testing.F) {
	b, err := store.EncodeUpdate(store.Update{Manifest: exampleManifest(), Delta: deltaOf(map[string]string{"a": "1"})}, ident.Hash{})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		u, blob, err := store.DecodeUpdate(b)
		m, alone := store.DecodeUpdateManifest(b) // does not look at the delta
		if err != nil {
			return
		}
		if alone != nil || !proto.Equal(m, u.Manifest) {
			t.Fatalf("manifest alone: %v, %v", m, alone)
		}
		again, err := store.EncodeUpdate(u, blob)
		if err != nil {
			t.Fatalf("a decoded update cannot be encoded: %v", err)
		}
		if u2, blob2, err := store.DecodeUpdate(again); err != nil || blob2 != blob || !proto.Equal(u.Manifest, u2.Manifest) {
			t.Fatalf("second round: %v, blob %s and %s", err, blob, blob2)
		}
	})
}

func TestParseVersion(t *testing.T) {
	v := ident.Position{Epoch: 3, Seq: 1<<64 - 1}
	if got, err := ident.ParsePosition(v.String()); err != nil || got != v {
		t.Errorf("%s was read as %s, %v", v, got, err)
	}
	for _, s := range []string{"", "1", "1.", ".1", "1.2.3", "1.2x", "-1.2", "a.b", "1.99999999999999999999"} {
		if v, err := ident.ParsePosition(s); err == nil {
			t.Errorf("%q was read as %s", s, v)
		}
	}
}
