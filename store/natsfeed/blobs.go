package natsfeed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/proto/ident"
	"meshlog.dev/proto/jsapi"
	"meshlog.dev/store"
)

// blobStream is the stream under the object store.
const blobStream = "OBJ_" + BlobBucket

// PutBlob implements store.Blobs. It writes an existing blob again only if a
// Sweep may soon delete it.
func (f *Feed) PutBlob(ctx context.Context, b []byte) (ident.Hash, error) {
	h := ident.HashOf(b)
	info, err := f.blobInfo(ctx, h)
	if err == nil && info.Size == uint64(len(b)) && !f.old(info.ModTime) {
		return h, nil
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return h, fmt.Errorf("put blob %s: %w", h, err)
	}
	ctx, cancel := jsapi.Watch(ctx, f.nc, blobMeta, blobChunks)
	defer cancel()
	if _, err := f.blobs.PutBytes(ctx, h.String(), b); err != nil {
		return h, fmt.Errorf("put blob %s: %w", h, jsapi.Cause(ctx, err))
	}
	return h, nil
}

// old reports whether a blob written at t must be written again: half of the
// time for which a Sweep keeps it is over.
func (f *Feed) old(t time.Time) bool {
	age := f.stream.CachedInfo().Config.MaxAge
	return age > 0 && time.Since(t) > age/2
}

// GetBlob implements store.Blobs. It reads the chunks by Direct Get:
// ObjectStore.Get would make a consumer on the server.
func (f *Feed) GetBlob(ctx context.Context, h ident.Hash) ([]byte, error) {
	b, err := f.getBlob(ctx, h)
	if errors.Is(err, store.ErrCorrupt) { // a process that writes a blob again replaces its chunks: read again
		b, err = f.getBlob(ctx, h)
	}
	if err != nil {
		return nil, fmt.Errorf("get blob %s: %w", h, err)
	}
	return b, nil
}

func (f *Feed) getBlob(ctx context.Context, h ident.Hash) ([]byte, error) {
	info, err := f.blobInfo(ctx, h)
	if err != nil {
		return nil, err
	}
	var b []byte
	chunks := blobChunks + info.NUID
	for next, left := uint64(1), int(info.Chunks); left > 0; {
		run, err := f.direct(ctx, blobStream, chunks, next, min(left, window))
		if err != nil {
			return nil, err
		}
		if len(run) == 0 {
			break
		}
		for _, m := range run {
			b = append(b, m.Data...)
		}
		next, left = run[len(run)-1].Seq+1, left-len(run)
	}
	if ident.HashOf(b) != h {
		return nil, store.ErrCorrupt
	}
	return b, nil
}

// blobInfo returns the metadata of a blob, from any server, or store.ErrNotFound.
func (f *Feed) blobInfo(ctx context.Context, h ident.Hash) (*jetstream.ObjectInfo, error) {
	ctx, cancel := f.bound(ctx, jsapi.DirectGet+blobStream)
	defer cancel()
	info, err := f.blobs.GetInfo(ctx, h.String())
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return nil, store.ErrNotFound
	}
	return info, jsapi.Cause(ctx, err)
}
