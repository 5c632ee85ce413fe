package store

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
)

// chunkSize is how many bytes of keys and values fit into one chunk. A larger
// content is split into its 64 nodes, and a larger node into its 64 buckets; a
// bucket is never split. So chunks depend on the content alone, and equal parts
// of two contents are one blob.
const chunkSize = 1 << 20

// readsAtOnce is how many chunks ReadRows reads at the same time: a cold start
// waits for them, and each costs a round trip.
const readsAtOnce = 8

// CheckpointWriter writes snapshots as chunks into blobs. It remembers the last
// one, and of the next it writes only the chunks that the two do not share. The
// zero CheckpointWriter is ready; one goroutine uses it.
//
// It assumes that its chunks still exist. Use a new CheckpointWriter with other
// blobs, or if blobs may be lost (the connection to the chain was renewed).
type CheckpointWriter struct {
	refs map[any]*snapshotv1.ChunkRef // of the last snapshot, by the *Snapshot, *mid or *bucket of the chunk
}

// Write puts the chunks of s, the content at v, and returns when they are
// durable. After an error some of them may exist; they do no harm.
func (w *CheckpointWriter) Write(ctx context.Context, blobs Blobs, s *Snapshot, v ident.Position) (*snapshotv1.Checkpoint, error) {
	c := &snapshotv1.Checkpoint{Rows: uint64(s.Len()), Version: VersionProto(v)}
	refs := make(map[any]*snapshotv1.ChunkRef)
	for _, part := range chunksOf(s) {
		ref := w.refs[part.node]
		if ref == nil {
			var err error
			if ref, err = putChunk(ctx, blobs, part.rows); err != nil {
				return nil, fmt.Errorf("checkpoint of version %s: %w", v, err)
			}
		}
		refs[part.node] = ref
		c.Chunks = append(c.Chunks, ref)
	}
	w.refs = refs
	return c, nil
}

// part is the content of one chunk: a node of the tree, by identity, and its rows.
type part struct {
	node any
	rows iter.Seq[Row]
}

// chunksOf splits s into chunks, in the order of its rows.
func chunksOf(s *Snapshot) []part {
	if s == nil {
		return nil
	}
	if s.size <= chunkSize {
		return []part{{s, s.Rows()}}
	}
	var parts []part
	for _, m := range s.children {
		if m == nil {
			continue
		}
		if m.size <= chunkSize {
			parts = append(parts, part{m, all(m)})
			continue
		}
		for _, b := range m.children {
			if b != nil {
				parts = append(parts, part{b, all(b)})
			}
		}
	}
	return parts
}

// all yields the rows of a subtree.
func all[C child[C]](c C) iter.Seq[Row] {
	return func(yield func(Row) bool) { c.each(yield) }
}

func putChunk(ctx context.Context, blobs Blobs, seq iter.Seq[Row]) (*snapshotv1.ChunkRef, error) {
	rows := slices.SortedFunc(seq, compareRows)
	b, err := marshal(&snapshotv1.Chunk{Rows: rowsProto(rows)})
	if err != nil {
		return nil, fmt.Errorf("chunk of rows %q to %q: %w", rows[0].Key, rows[len(rows)-1].Key, err)
	}
	h, err := blobs.PutBlob(ctx, b)
	if err != nil {
		return nil, fmt.Errorf("put chunk %s: %w", ident.HashOf(b), err)
	}
	return &snapshotv1.ChunkRef{Hash: h[:], Size: uint64(len(b))}, nil
}

// ReadCheckpoint reads the content that c lists. The error is ErrNotFound if a
// chunk is missing, and ErrCorrupt if the chunks do not fit c. GetBlob checks
// that each chunk is whole; the caller compares the root of the content.
func ReadCheckpoint(ctx context.Context, blobs Blobs, c *snapshotv1.Checkpoint) (*Snapshot, error) {
	rows, err := ReadRows(ctx, blobs, c)
	if err != nil {
		return nil, err
	}
	return (*Snapshot)(nil).With(Delta{Put: rows}), nil
}

// WriteRows puts rows, sorted by key, in the chunks of a Snapshot with these
// rows. A caller that writes repeatedly uses a Snapshot and a CheckpointWriter.
func WriteRows(ctx context.Context, blobs Blobs, rows []Row, v ident.Position) (*snapshotv1.Checkpoint, error) {
	d := Delta{Put: rows}
	if err := d.Check(); err != nil {
		return nil, fmt.Errorf("checkpoint of version %s: %w", v, err)
	}
	return new(CheckpointWriter).Write(ctx, blobs, (*Snapshot)(nil).With(d), v)
}

// ReadRows is ReadCheckpoint for callers that need no Snapshot. It returns the
// rows, sorted by key.
func ReadRows(ctx context.Context, blobs Blobs, c *snapshotv1.Checkpoint) ([]Row, error) {
	chunks := make([][]Row, len(c.GetChunks()))
	read := func(ctx context.Context, i int) (err error) {
		if chunks[i], err = getChunk(ctx, blobs, c.GetChunks()[i]); err != nil {
			return fmt.Errorf("checkpoint of version %s: chunk %d of %d: %w", VersionOf(c.GetVersion()), i+1, len(chunks), err)
		}
		return nil
	}
	if len(chunks) == 1 { // without another goroutine
		if err := read(ctx, 0); err != nil {
			return nil, err
		}
	} else {
		reads, ctx := errgroup.WithContext(ctx)
		reads.SetLimit(readsAtOnce)
		for i := range chunks {
			reads.Go(func() error { return read(ctx, i) })
		}
		if err := reads.Wait(); err != nil {
			return nil, err
		}
	}
	rows := slices.Concat(chunks...)
	if uint64(len(rows)) != c.GetRows() {
		return nil, fmt.Errorf("checkpoint of version %s: %d rows, want %d: %w", VersionOf(c.GetVersion()), len(rows), c.GetRows(), ErrCorrupt)
	}
	slices.SortFunc(rows, compareRows)
	if err := (Delta{Put: rows}).Check(); err != nil {
		return nil, fmt.Errorf("checkpoint of version %s: %w: %w", VersionOf(c.GetVersion()), ErrCorrupt, err)
	}
	return rows, nil
}

func getChunk(ctx context.Context, blobs Blobs, ref *snapshotv1.ChunkRef) ([]Row, error) {
	h, err := HashFrom(ref.GetHash())
	if err != nil {
		return nil, err
	}
	b, err := blobs.GetBlob(ctx, h)
	if err != nil {
		return nil, fmt.Errorf("blob %s: %w", h, err)
	}
	if uint64(len(b)) != ref.GetSize() {
		return nil, fmt.Errorf("blob %s: %d bytes, want %d: %w", h, len(b), ref.GetSize(), ErrCorrupt)
	}
	chunk := new(snapshotv1.Chunk)
	if err := proto.Unmarshal(b, chunk); err != nil {
		return nil, fmt.Errorf("blob %s: %w: %w", h, ErrCorrupt, err)
	}
	return rowsOf(chunk.GetRows()), nil
}

func compareRows(a, b Row) int { return strings.Compare(a.Key, b.Key) }

func compareRow(r Row, key string) int { return strings.Compare(r.Key, key) }
