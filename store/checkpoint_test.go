package store_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

// blobs is a minimal store.Blobs that counts puts.
type blobs struct {
	kept map[ident.Hash][]byte
	puts int
}

func newBlobs() *blobs { return &blobs{kept: make(map[ident.Hash][]byte)} }

func (b *blobs) PutBlob(_ context.Context, blob []byte) (ident.Hash, error) {
	b.puts++
	b.kept[ident.HashOf(blob)] = blob
	return ident.HashOf(blob), nil
}

func (b *blobs) GetBlob(_ context.Context, h ident.Hash) ([]byte, error) {
	blob, ok := b.kept[h]
	if !ok {
		return nil, store.ErrNotFound
	}
	if ident.HashOf(blob) != h {
		return nil, store.ErrCorrupt
	}
	return blob, nil
}

func TestCheckpoint(t *testing.T) {
	v := ident.Position{Epoch: 1, Seq: 2}
	for _, tt := range []struct {
		name   string
		rows   int
		size   int
		chunks int
	}{
		{"empty", 0, 0, 0},
		{"small", 1000, 100, 1},
		{"a chunk for each node", 2000, 1000, 64},
		{"one node in buckets", 2000, 400, 63 + 34},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rows := make(map[string]string)
			for i := range tt.rows {
				rows[fmt.Sprintf("k%d", i)] = strings.Repeat(string(rune('a'+i%20)), tt.size)
			}
			if tt.name == "one node in buckets" {
				rows["large"] = strings.Repeat("large", 300_000)
			}
			s := build(rows)
			kept := newBlobs()
			var w store.CheckpointWriter
			c, err := w.Write(t.Context(), kept, s, v)
			if err != nil {
				t.Fatal(err)
			}
			if len(c.GetChunks()) != tt.chunks || len(kept.kept) != tt.chunks {
				t.Errorf("%d chunks in %d blobs, want %d", len(c.GetChunks()), len(kept.kept), tt.chunks)
			}
			got, err := store.ReadCheckpoint(t.Context(), kept, c)
			if err != nil {
				t.Fatal(err)
			}
			if got.Root() != s.Root() {
				t.Errorf("read root %s, want %s", got.Root(), s.Root())
			}
			back, err := store.ReadRows(t.Context(), kept, c)
			if err != nil {
				t.Fatal(err)
			}
			if want := slices.Sorted(maps.Keys(rows)); !slices.EqualFunc(back, want, func(r store.Row, k string) bool { return r.Key == k }) {
				t.Errorf("%d rows were read, or out of order", len(back))
			}
			again, err := store.WriteRows(t.Context(), newBlobs(), back, v)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c, again, protocmp.Transform()); diff != "" {
				t.Errorf("the same rows have other chunks (-first +second):\n%s", diff)
			}
		})
	}
}

// A CheckpointWriter neither encodes nor puts unchanged chunks again.
func TestCheckpointWriterReuses(t *testing.T) {
	rows := make(map[string]string)
	for i := range 2000 {
		rows[fmt.Sprintf("k%d", i)] = strings.Repeat("x", 1000)
	}
	s := build(rows)
	kept := newBlobs()
	var w store.CheckpointWriter
	write := func(s *store.Snapshot) int {
		t.Helper()
		before := kept.puts
		c, err := w.Write(t.Context(), kept, s, ident.Position{Epoch: 1, Seq: 1})
		if err != nil {
			t.Fatal(err)
		}
		got, err := store.ReadCheckpoint(t.Context(), kept, c)
		if err != nil {
			t.Fatal(err)
		}
		if got.Root() != s.Root() {
			t.Fatalf("read root %s, want %s", got.Root(), s.Root())
		}
		return kept.puts - before
	}
	if n := write(s); n != 64 {
		t.Errorf("the first one put %d chunks, want 64", n)
	}
	if n := write(s); n != 0 {
		t.Errorf("the same again put %d chunks, want 0", n)
	}
	s = s.With(deltaOf(map[string]string{"k7": "y"}))
	if n := write(s); n != 1 {
		t.Errorf("after a change of one row %d chunks were put, want 1", n)
	}
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 20 {
		s = s.With(randomDelta(rnd, rows, 10, 2000))
		if n := write(s); n > 10 {
			t.Errorf("after a change of at most 10 rows %d chunks were put", n)
		}
	}
}

func TestReadCheckpointRefuses(t *testing.T) {
	rows := make(map[string]string)
	for i := range 3000 {
		rows[fmt.Sprintf("k%d", i)] = strings.Repeat("x", 1000)
	}
	for _, tt := range []struct {
		name  string
		spoil func(b *blobs, first, second ident.Hash) (swap bool)
		want  error
	}{
		{"a chunk is gone", func(b *blobs, first, _ ident.Hash) bool { delete(b.kept, first); return false }, store.ErrNotFound},
		{"a bit flipped", func(b *blobs, first, _ ident.Hash) bool { b.kept[first][9] ^= 1; return false }, store.ErrCorrupt},
		{"a chunk twice", func(*blobs, ident.Hash, ident.Hash) bool { return true }, store.ErrCorrupt},
	} {
		kept := newBlobs()
		c, err := store.WriteRows(t.Context(), kept, deltaOf(rows).Put, ident.Position{Epoch: 1, Seq: 1})
		if err != nil {
			t.Fatal(err)
		}
		refs := c.GetChunks()
		if tt.spoil(kept, ident.Hash(refs[0].GetHash()), ident.Hash(refs[1].GetHash())) {
			refs[0] = refs[1]
		}
		if _, err := store.ReadCheckpoint(t.Context(), kept, c); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
}

func TestWriteRowsRefusesDisorder(t *testing.T) {
	_, err := store.WriteRows(t.Context(), newBlobs(), []store.Row{{Key: "b"}, {Key: "a"}}, ident.Position{Epoch: 1, Seq: 1})
	if err == nil {
		t.Error("rows out of order were written")
	}
}
