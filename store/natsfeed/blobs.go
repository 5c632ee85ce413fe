package natsfeed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

// blobStream is the stream under the object store.
const blobStream = "OBJ_" + BlobBucket

// PutBlob implements store.Blobs. A blob that is there is not written again,
// but for one that a Sweep may soon delete.
func (f *Feed) PutBlob(ctx context.Context, b []byte) (ident.Hash, error) {
	h := ident.HashOf(b)
	info, err := f.blobInfo(ctx, h)
	if err == nil && info.Size == uint64(len(b)) && !f.old(info.ModTime) {
		return h, nil
	}
	if err != nil && !errors.Is(err, jetstream.ErrObjectNotFound) {
		return h, fmt.Errorf("put blob %s: %w", h, err)
	}
	ctx, cancel := f.undenied(ctx, blobMeta, blobChunks)
	defer cancel()
	if _, err := f.blobs.PutBytes(ctx, h.String(), b); err != nil {
		return h, fmt.Errorf("put blob %s: %w", h, cause(ctx, err))
	}
	return h, nil
}

// old says whether a blob of that time is to be put again: half of the time in
// which a Sweep lets it be is over.
func (f *Feed) old(t time.Time) bool {
	age := f.stream.CachedInfo().Config.MaxAge
	return age > 0 && time.Since(t) > age/2
}

// GetBlob implements store.Blobs. ObjectStore.Get would make a consumer on the
// server; the chunks are read by Direct Get instead.
func (f *Feed) GetBlob(ctx context.Context, h ident.Hash) ([]byte, error) {
	var err error
	for range 2 { // who puts a blob again replaces its chunks: look again
		var b []byte
		if b, err = f.getBlob(ctx, h); err == nil || !errors.Is(err, store.ErrCorrupt) {
			return b, err
		}
	}
	return nil, err
}

func (f *Feed) getBlob(ctx context.Context, h ident.Hash) ([]byte, error) {
	info, err := f.blobInfo(ctx, h)
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return nil, fmt.Errorf("get blob %s: %w", h, store.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("get blob %s: %w", h, err)
	}
	var b []byte
	chunks := blobChunks + info.NUID
	for next, left := uint64(1), int(info.Chunks); left > 0; {
		run, err := f.direct(ctx, blobStream, chunks, next, min(left, window))
		if err != nil {
			return nil, fmt.Errorf("get blob %s: %w", h, err)
		}
		if len(run) == 0 {
			break
		}
		for _, m := range run {
			b = append(b, m.data...)
		}
		next, left = run[len(run)-1].seq+1, left-len(run)
	}
	if ident.HashOf(b) != h {
		return nil, fmt.Errorf("get blob %s: %w", h, store.ErrCorrupt)
	}
	return b, nil
}

// blobInfo is what the store says of a blob, by any server.
func (f *Feed) blobInfo(ctx context.Context, h ident.Hash) (*jetstream.ObjectInfo, error) {
	ctx, cancel := f.request(ctx, directGetAPI+blobStream)
	defer cancel()
	info, err := f.blobs.GetInfo(ctx, h.String())
	return info, cause(ctx, err)
}
