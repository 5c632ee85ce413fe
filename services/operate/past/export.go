package past

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/store"
)

// Export is the extent of an archive.
type Export struct {
	// First and Last are the records of the log.
	First, Last uint64
	// From and To are the first and the last version; zero if there is none.
	From, To ident.Position
	// Versions and Blobs are counts; Blobs is known once the archive is written.
	Versions, Blobs int

	past *Past
}

// ArchiveWriter writes an archive. events/archive implements it.
type ArchiveWriter interface {
	Append(r events.Raw) error
	Put(name string, b []byte) error
	Has(name string) bool
}

// A run of versions is closed after so many versions or bytes. To read one
// version, all of its run is read.
const (
	runVersions = 256
	runBytes    = 1 << 20
)

// PlanExport returns the extent of an archive of everything since a record; since
// 0 of everything. The archive begins earlier, at the nearest position from which
// the log can be folded, and with the version that was served then.
func PlanExport(ctx context.Context, p *Past, since uint64) (*Export, error) {
	chain, err := links(p.Versions.History(ctx))
	if err != nil {
		return nil, err
	}
	bounds, err := p.bounds(ctx)
	if err != nil {
		return nil, err
	}
	e := &Export{First: bounds.First, Last: bounds.Last, past: p}
	var at ident.Position // the earliest position to which the archive can be folded
	if since > bounds.First {
		r, err := Begin(ctx, p, since)
		if err != nil {
			return nil, err
		}
		if at = r.From(); r.begun { // with the record itself
			e.First = at.Seq
		} else {
			e.First = at.Seq + 1
		}
	}
	first := slices.IndexFunc(chain, func(l link) bool { return at.Compare(l.version) <= 0 })
	if first < 0 {
		first = len(chain)
	}
	if first > 0 && at != (ident.Position{}) && (first == len(chain) || at != chain[first].version) {
		first-- // served at the beginning
	}
	return e, e.versions(ctx, chain[first:])
}

// versions skips the versions that are older than the oldest checkpoint.
func (e *Export) versions(ctx context.Context, chain []link) error {
	for i, l := range chain {
		_, err := e.past.Versions.Fetch(ctx, l.version)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		e.From, e.To, e.Versions = l.version, chain[len(chain)-1].version, len(chain)-i
		return nil
	}
	return nil
}

// Write writes the archive, but does not close it. progress may be nil.
func (e *Export) Write(ctx context.Context, w ArchiveWriter, progress func(done, total int64)) error {
	x := &exporter{Export: e, w: w}
	if e.Versions > 0 {
		if err := x.writeVersions(ctx); err != nil {
			return err
		}
	}
	total := int64(e.Last + 1 - e.First)
	for r, err := range e.past.Log.Raw(ctx, e.First, e.Last) {
		if err != nil {
			return err
		}
		if err := x.base(ctx, r); err != nil {
			return err
		}
		if err := w.Append(r); err != nil {
			return err
		}
		if progress != nil {
			progress(int64(r.Seq+1-e.First), total)
		}
	}
	return nil
}

type exporter struct {
	*Export
	w       ArchiveWriter
	content store.CheckpointWriter
	run     []byte
	name    string // of run
	count   int    // versions in run
}

// writeVersions writes the versions, oldest first.
func (x *exporter) writeVersions(ctx context.Context) error {
	var at store.Stored
	for u, err := range x.past.Versions.Updates(ctx, x.From) {
		if err != nil {
			return err
		}
		v := store.VersionOf(u.Manifest.GetVersion())
		if prev, _ := store.PreviousOf(u.Manifest); at.Manifest != nil && prev == at.Version() {
			at = store.Stored{Manifest: u.Manifest, Snapshot: at.Snapshot.With(u.Delta)}
		} else if at, err = x.past.Versions.Fetch(ctx, v); err != nil {
			return err
		}
		if root := at.Snapshot.Root(); root != store.RootOf(u.Manifest) {
			return fmt.Errorf("version %s has root %s, its manifest says %s: %w", v, root, store.RootOf(u.Manifest), store.ErrCorrupt)
		}
		if err := x.version(ctx, u, at.Snapshot); err != nil {
			return fmt.Errorf("version %s: %w", v, err)
		}
		if v == x.To {
			break
		}
	}
	return x.closeRun()
}

func (x *exporter) version(ctx context.Context, u store.Update, content *store.Snapshot) (err error) {
	v := store.VersionOf(u.Manifest.GetVersion())
	m := proto.CloneOf(u.Manifest)
	m.Checkpoint = nil
	if x.count == 0 {
		x.name = versionFile(v)
		if m.Checkpoint, err = x.content.Write(ctx, x, content, v); err != nil {
			return err
		}
	}
	if m.FoldCheckpoint, err = x.foldCheckpoint(ctx, u.Manifest.GetFoldCheckpoint()); err != nil {
		return err
	}
	if x.run, err = encodeUpdate(x.run, store.Update{Manifest: m, Delta: u.Delta}); err != nil {
		return err
	}
	if x.count++; x.count >= runVersions || len(x.run) >= runBytes {
		return x.closeRun()
	}
	return nil
}

func (x *exporter) closeRun() error {
	if x.count == 0 {
		return nil
	}
	err := x.w.Put(x.name, x.run)
	x.run, x.count = nil, 0
	return err
}

// foldCheckpoint copies the blobs of a checkpoint from which the log of the
// archive continues. It returns nil if the log does not, or a blob is lost.
func (x *exporter) foldCheckpoint(ctx context.Context, c *snapshotv1.Checkpoint) (*snapshotv1.Checkpoint, error) {
	if c == nil || x.past.Blobs == nil {
		return nil, nil
	}
	_, meta, err := x.past.foldRows(ctx, c)
	if errors.Is(err, store.ErrNotFound) || err == nil && meta.GetPosition().GetSeq()+1 < x.First {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return c, x.chunks(ctx, c)
}

func (x *exporter) chunks(ctx context.Context, c *snapshotv1.Checkpoint) error {
	for _, ref := range c.GetChunks() {
		h, err := store.HashFrom(ref.GetHash())
		if err != nil {
			return err
		}
		if _, err := x.blob(ctx, h); err != nil {
			return err
		}
	}
	return nil
}

// base copies the base of a segment, if r is one. If the base is lost, the archive
// cannot be folded from there; it is written all the same.
func (x *exporter) base(ctx context.Context, r events.Raw) error {
	g, ok := r.Record().Event.Body.(*events.Segment)
	if !ok || g.Base.IsZero() {
		return nil
	}
	b, err := x.blob(ctx, g.Base)
	if err == nil {
		var c *snapshotv1.Checkpoint
		if c, err = store.DecodeCheckpoint(b); err == nil {
			err = x.chunks(ctx, c)
		}
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("base of the segment of record %d: %w", r.Seq, err)
	}
	return nil
}

// blob copies a blob.
func (x *exporter) blob(ctx context.Context, h ident.Hash) ([]byte, error) {
	if x.past.Blobs == nil {
		return nil, fmt.Errorf("blob %s: %w", h, store.ErrNotFound)
	}
	b, err := x.past.Blobs.GetBlob(ctx, h)
	if err != nil {
		return nil, err
	}
	_, err = x.PutBlob(ctx, b)
	return b, err
}

// PutBlob implements store.Blobs.
func (x *exporter) PutBlob(_ context.Context, b []byte) (ident.Hash, error) {
	h := ident.HashOf(b)
	if x.w.Has(blobFile(h)) {
		return h, nil
	}
	x.Blobs++
	return h, x.w.Put(blobFile(h), b)
}

// GetBlob implements store.Blobs. An archive that is being written is not read.
func (x *exporter) GetBlob(context.Context, ident.Hash) ([]byte, error) {
	return nil, errors.ErrUnsupported
}
