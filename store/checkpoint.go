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

// chunkSize is how many bytes of keys and values are one chunk. What is
// larger is split: the whole into its 64 parts, such a part into its 64
// buckets; a bucket is never split. So chunks depend on the content alone, and
// equal parts of two contents are one blob.
const chunkSize = 1 << 20

// readsAtOnce is how many chunks are read at the same time: a cold start waits
// for them, and each is a round trip.
const readsAtOnce = 8

// CheckpointWriter writes snapshots as chunks into blobs. It remembers the
// last one that it wrote: of the next, only what is not shared with it is
// encoded and put. The zero CheckpointWriter is ready; one goroutine uses it.
//
// It takes for granted that what it put is still there. With other blobs, or
// ones that may have lost something (the connection to the chain was renewed),
// begin with a new one.
type CheckpointWriter struct {
	refs map[any]*snapshotv1.ChunkRef // of the last one, by the *Snapshot, *mid or *bucket that is the chunk
}

// Write puts the chunks of s, which is the content at v, and returns once they
// are durable. After an error some of them may be there; they do no harm.
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

// part is what becomes one chunk: a node of the tree, by identity, and its rows.
type part struct {
	node any
	rows iter.Seq[Row]
}

// chunksOf cuts s, in the order of its rows.
func chunksOf(s *Snapshot) []part {
	if s == nil {
		return nil
	}
	if s.size <= chunkSize {
		return []part{{s, s.Rows()}}
	}
	var parts []part
	for _, m := range s.mids {
		if m == nil {
			continue
		}
		if m.size <= chunkSize {
			parts = append(parts, part{m, m.all})
			continue
		}
		for _, b := range m.buckets {
			if b != nil {
				parts = append(parts, part{b, b.all})
			}
		}
	}
	return parts
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

// ReadCheckpoint reads the content that c lists: ErrNotFound if a chunk is
// gone, ErrCorrupt if the chunks are not what c says. That the chunks are
// whole is GetBlob's promise; that they are the right ones is for the caller
// to see, by the root.
func ReadCheckpoint(ctx context.Context, blobs Blobs, c *snapshotv1.Checkpoint) (*Snapshot, error) {
	rows, err := ReadRows(ctx, blobs, c)
	if err != nil {
		return nil, err
	}
	return (*Snapshot)(nil).With(Delta{Put: rows}), nil
}

// WriteRows puts any rows, sorted by key, in the chunks that a Snapshot of them
// would have. Who does it again and again keeps a Snapshot and a
// CheckpointWriter instead.
func WriteRows(ctx context.Context, blobs Blobs, rows []Row, v ident.Position) (*snapshotv1.Checkpoint, error) {
	d := Delta{Put: rows}
	if err := d.Check(); err != nil {
		return nil, fmt.Errorf("checkpoint of version %s: %w", v, err)
	}
	return new(CheckpointWriter).Write(ctx, blobs, (*Snapshot)(nil).With(d), v)
}

// ReadRows returns ReadCheckpoint for those who want no Snapshot: the rows, sorted by
// key.
func ReadRows(ctx context.Context, blobs Blobs, c *snapshotv1.Checkpoint) ([]Row, error) {
	chunks := make([][]Row, len(c.GetChunks()))
	read := func(ctx context.Context, i int) (err error) {
		if chunks[i], err = getChunk(ctx, blobs, c.GetChunks()[i]); err != nil {
			return fmt.Errorf("checkpoint of version %s: chunk %d of %d: %w", VersionOf(c.GetVersion()), i+1, len(chunks), err)
		}
		return nil
	}
	if len(chunks) == 1 { // by the caller itself: a small content needs no other goroutine
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
