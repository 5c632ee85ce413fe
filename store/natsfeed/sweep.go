package natsfeed

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/proto/ident"
	"meshlog.dev/proto/jsapi"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/store"
)

// Swept counts the blobs of a sweep.
type Swept struct {
	Blobs int    // deleted blobs
	Bytes uint64 // deleted bytes
	Kept  int    // kept blobs
}

// Sweep deletes the blobs that are older than age and that neither a version of
// the stream nor a base names. bases are the hashes of blobs with checkpoints.
//
// It does not race with writers if age is at least the age of the stream's
// versions. PutBlob writes a blob again that is older than half of that age, so
// a process that relies on an existing blob has at least the other half to
// publish the version that names it. A blob that is written again during the
// sweep stays, because Sweep deletes one writing, by its sequence.
//
// After a crash in between, the next sweep deletes chunks without a blob.
func (f *Feed) Sweep(ctx context.Context, age time.Duration, bases []ident.Hash) (Swept, error) {
	s, err := f.sweep(ctx, age, bases)
	if err != nil {
		return s, fmt.Errorf("sweep the blobs: %w", err)
	}
	return s, nil
}

func (f *Feed) sweep(ctx context.Context, age time.Duration, bases []ident.Hash) (Swept, error) {
	// First the blobs, then their names: a version published later names blobs
	// that were put later.
	all, err := f.blobList(ctx)
	if err != nil {
		return Swept{}, err
	}
	named, err := f.named(ctx, bases)
	if err != nil {
		return Swept{}, err
	}
	var done Swept
	whole := map[string]bool{} // NUIDs of kept blobs
	for _, b := range all.blobs {
		if named[b.hash] || all.now.Sub(b.time) < age {
			whole[b.nuid] = true
			done.Kept++
			continue
		}
		deleted, err := f.deleteBlob(ctx, b)
		if err != nil {
			return done, err
		}
		if deleted {
			done.Blobs++
			done.Bytes += b.size
		}
	}
	return done, f.sweepChunks(ctx, all, whole, age)
}

// sweepChunks deletes chunks that belong to no blob, left by a failed write or
// an interrupted sweep.
func (f *Feed) sweepChunks(ctx context.Context, all blobList, whole map[string]bool, age time.Duration) error {
	for _, nuid := range all.nuids {
		if whole[nuid] {
			continue
		}
		run, err := f.direct(ctx, blobStream, blobChunks+nuid, 1, 1)
		if err != nil {
			return err
		}
		if len(run) == 0 || all.now.Sub(run[0].Time) < age {
			continue
		}
		if _, err := f.purge(ctx, blobChunks+nuid, 0); err != nil {
			return err
		}
	}
	return nil
}

// blob is one writing of a blob.
type blob struct {
	hash    ident.Hash
	subject string // of its metadata
	seq     uint64
	nuid    string // names its chunks
	size    uint64
	time    time.Time
}

// blobList is the content of the object store.
type blobList struct {
	now   time.Time // by the server's clock
	blobs []blob
	nuids []string // of all chunks
}

// blobList lists the object store without a consumer.
func (f *Feed) blobList(ctx context.Context) (blobList, error) {
	var all blobList
	stream, err := f.js.Stream(ctx, blobStream)
	if err != nil {
		return all, err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter("$O."+BlobBucket+".>"))
	if err != nil {
		return all, fmt.Errorf("list %s: %w", BlobBucket, err)
	}
	all.now = info.TimeStamp
	for subject := range info.State.Subjects {
		if nuid, ok := strings.CutPrefix(subject, blobChunks); ok {
			all.nuids = append(all.nuids, nuid)
			continue
		}
		b, err := f.blobAt(ctx, stream, subject)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			return all, err
		}
		all.blobs = append(all.blobs, b)
	}
	return all, nil
}

func (f *Feed) blobAt(ctx context.Context, stream jetstream.Stream, subject string) (blob, error) {
	name, err := base64.URLEncoding.DecodeString(strings.TrimPrefix(subject, blobMeta))
	if err != nil {
		return blob{}, fmt.Errorf("blob under %s: %w", subject, err)
	}
	m, err := stream.GetLastMsgForSubject(ctx, subject)
	if err != nil {
		return blob{}, fmt.Errorf("blob under %s: %w", subject, err)
	}
	var meta jetstream.ObjectInfo
	if err := json.Unmarshal(m.Data, &meta); err != nil {
		return blob{}, fmt.Errorf("blob under %s: %w", subject, err)
	}
	b := blob{subject: subject, seq: m.Sequence, nuid: meta.NUID, size: meta.Size, time: m.Time}
	if h, err := hex.DecodeString(string(name)); err == nil && len(h) == len(b.hash) {
		b.hash = ident.Hash(h)
	} // else no version can name it, and its age alone decides
	return b, nil
}

// deleteBlob deletes one writing of a blob, and reports whether it existed.
func (f *Feed) deleteBlob(ctx context.Context, b blob) (bool, error) {
	n, err := f.purge(ctx, b.subject, b.seq+1)
	if err != nil || n == 0 {
		return false, err
	}
	_, err = f.purge(ctx, blobChunks+b.nuid, 0)
	return true, err
}

// purge deletes the messages under a subject, either before a sequence or, with
// 0, all of them. It returns how many it deleted.
func (f *Feed) purge(ctx context.Context, subject string, before uint64) (uint64, error) {
	request := struct {
		Subject  string `json:"filter"`
		Sequence uint64 `json:"seq,omitempty"`
	}{subject, before}
	var answer struct {
		jsapi.Response
		Purged uint64 `json:"purged"`
	}
	if err := jsapi.Call(ctx, f.nc, jsapi.StreamPurge+blobStream, request, &answer); err != nil {
		return 0, fmt.Errorf("delete %s: %w", subject, err)
	}
	return answer.Purged, nil
}

// named returns the blobs that the versions of all meshes name, and the bases.
func (f *Feed) named(ctx context.Context, bases []ident.Hash) (map[ident.Hash]bool, error) {
	named := map[ident.Hash]bool{}
	chunks := func(c *snapshotv1.Checkpoint) {
		for _, ref := range c.GetChunks() {
			named[ident.Hash(ref.GetHash())] = true
		}
	}
	for _, base := range bases {
		named[base] = true
		b, err := f.GetBlob(ctx, base)
		if errors.Is(err, store.ErrNotFound) {
			continue // no process can use it
		}
		if err != nil {
			return nil, err
		}
		c, err := store.DecodeCheckpoint(b)
		if err != nil {
			return nil, err
		}
		chunks(c)
	}
	info, err := f.info(ctx)
	if err != nil {
		return nil, err
	}
	err = f.visitVersions(ctx, max(info.State.FirstSeq, 1), info.State.LastSeq, func(m message) {
		if !m.blob.IsZero() {
			named[m.blob] = true
		}
		chunks(m.update.Manifest.GetCheckpoint())
		chunks(m.update.Manifest.GetFoldCheckpoint())
	})
	if err != nil {
		return nil, err
	}
	return named, nil
}

// visitVersions calls visit for the versions of all meshes from sequence first on,
// until one at last or behind it: last itself may expire meanwhile. Without such a
// version it fails, because a server that lags must not make blobs look unnamed.
func (f *Feed) visitVersions(ctx context.Context, first, last uint64, visit func(message)) error {
	if first > last {
		return nil
	}
	next := first
	for m, err := range f.forward(ctx, SubjectPrefix+">", first, math.MaxUint64) {
		if err != nil {
			return err
		}
		switch {
		case m.err == nil:
			visit(m)
		case !errors.Is(m.err, errServer) && !errors.Is(m.err, errHeader):
			// A later build may have published it, and it names blobs.
			return fmt.Errorf("message %d of %s: %w", m.seq, Stream, m.err)
		}
		if m.seq >= last {
			return nil
		}
		next = m.seq + 1
	}
	return fmt.Errorf("the server that answers has no version from %d on, and the stream ends at %d", next, last)
}
