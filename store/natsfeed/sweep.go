package natsfeed

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/proto/ident"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/store"
)

// Swept is what a sweep came to.
type Swept struct {
	Blobs int    // that were deleted
	Bytes uint64 // of them
	Kept  int
}

// Sweep deletes the blobs that are older than age and that nobody names: no
// version that is kept, and none of bases, which are blobs with checkpoints.
//
// It races with nobody who writes, if age is not below the age of the stream's
// versions. PutBlob takes a blob for there only while it is younger than half
// of that: who has not put one again has at least the other half to publish what
// names it. A blob that is put again while it is swept stays, for what is
// deleted is one writing of it, by its sequence.
//
// A crash in between leaves bytes without a name, which the next sweep deletes.
func (f *Feed) Sweep(ctx context.Context, age time.Duration, bases []ident.Hash) (Swept, error) {
	s, err := f.sweep(ctx, age, bases)
	if err != nil {
		return s, fmt.Errorf("sweep the blobs: %w", err)
	}
	return s, nil
}

func (f *Feed) sweep(ctx context.Context, age time.Duration, bases []ident.Hash) (Swept, error) {
	// First the blobs, then who names them: what is named later was put later.
	all, err := f.blobList(ctx)
	if err != nil {
		return Swept{}, err
	}
	named, err := f.named(ctx, bases)
	if err != nil {
		return Swept{}, err
	}
	var done Swept
	whole := map[string]bool{} // NUIDs of blobs that stay
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

// sweepChunks deletes bytes that belong to no blob: of a writing that failed, or
// a sweep that did not come to its end.
func (f *Feed) sweepChunks(ctx context.Context, all blobList, whole map[string]bool, age time.Duration) error {
	for _, nuid := range all.nuids {
		if whole[nuid] {
			continue
		}
		run, err := f.direct(ctx, blobStream, blobChunks+nuid, 1, 1)
		if err != nil {
			return err
		}
		if len(run) == 0 || all.now.Sub(run[0].time) < age {
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
	subject string // of what it is
	seq     uint64
	nuid    string // names its bytes
	size    uint64
	time    time.Time
}

// blobList is what lies in the store.
type blobList struct {
	now   time.Time // by the server's clock
	blobs []blob
	nuids []string // of all bytes
}

// blobList lists without a consumer.
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
	} // else it is nobody's, and goes by its age
	return b, nil
}

// deleteBlob deletes one writing of a blob, and says whether it was still there.
func (f *Feed) deleteBlob(ctx context.Context, b blob) (bool, error) {
	n, err := f.purge(ctx, b.subject, b.seq+1)
	if err != nil || n == 0 {
		return false, err
	}
	_, err = f.purge(ctx, blobChunks+b.nuid, 0)
	return true, err
}

// purge deletes the messages under a subject, those before a sequence or, with
// 0, all, and says how many there were.
func (f *Feed) purge(ctx context.Context, subject string, before uint64) (uint64, error) {
	request, err := json.Marshal(struct {
		Subject  string `json:"filter"`
		Sequence uint64 `json:"seq,omitempty"`
	}{subject, before})
	if err != nil {
		return 0, err
	}
	ctx, cancel := f.request(ctx, purgeAPI+blobStream)
	defer cancel()
	reply, err := f.nc.RequestWithContext(ctx, purgeAPI+blobStream, request)
	if err != nil {
		return 0, fmt.Errorf("delete %s: %w", subject, cause(ctx, err))
	}
	var answer struct {
		Purged uint64              `json:"purged"`
		Error  *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return 0, fmt.Errorf("delete %s: %w", subject, err)
	}
	if answer.Error != nil {
		return 0, fmt.Errorf("delete %s: %w", subject, answer.Error)
	}
	return answer.Purged, nil
}

// named are the blobs that the versions of all meshes name, and the bases.
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
			continue // nobody can use it
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
	for from := max(info.State.FirstSeq, 1); from <= info.State.LastSeq; {
		run, err := f.direct(ctx, Stream, SubjectPrefix+">", from, window)
		if err != nil {
			return nil, err
		}
		if len(run) == 0 { // a server that lags must not make blobs look unnamed
			return nil, fmt.Errorf("the server that answers has no version from %d on, and the stream ends at %d", from, info.State.LastSeq)
		}
		for _, r := range run {
			m, err := decode(r.seq, r.data)
			if err != nil {
				return nil, err
			}
			if !m.blob.IsZero() {
				named[m.blob] = true
			}
			chunks(m.update.Manifest.GetCheckpoint())
			chunks(m.update.Manifest.GetFoldCheckpoint())
		}
		from = run[len(run)-1].seq + 1
	}
	return named, nil
}
