package past

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"meshlog.dev/events"
	"meshlog.dev/events/archive"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/store"
)

// Export is the extent of an archive.
type Export struct {
	First    uint64         `json:"first"` // record of the log
	Last     uint64         `json:"last"`
	From     ident.Position `json:"from,omitzero"` // version
	To       ident.Position `json:"to,omitzero"`
	Versions int            `json:"versions"`
	Blobs    int            `json:"blobs"` // known once the archive is written
	Proxies  int            `json:"proxies"`

	past  *Past
	nodes []byte // nil: the archive does not say which proxies there were
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
		at, e.First = r.From(), r.first
	}
	first := slices.IndexFunc(chain, func(l link) bool { return at.Compare(l.version) <= 0 })
	if first < 0 {
		first = len(chain)
	}
	if first > 0 && !at.IsZero() && (first == len(chain) || at != chain[first].version) {
		first-- // served at the beginning
	}
	for i, l := range chain[first:] {
		_, err := p.Versions.Fetch(ctx, l.version)
		if errors.Is(err, store.ErrNotFound) {
			continue // it is older than the oldest checkpoint
		}
		e.From, e.To, e.Versions = l.version, chain[len(chain)-1].version, len(chain)-first-i
		return e, err
	}
	return e, nil
}

// AddNodes adds the proxies that are connected now, for commands that name one of them.
func (e *Export) AddNodes(replies []*reportv1.ProxyReply) (err error) {
	e.nodes, e.Proxies, err = encodeNodes(replies)
	if e.nodes == nil {
		e.nodes = []byte{} // there are none
	}
	return err
}

// Write writes the archive, but does not close it.
func (e *Export) Write(ctx context.Context, w *archive.Writer, progress Progress) error {
	x := &exporter{Blobs: e.past.Blobs, plan: e, w: w}
	if e.Versions > 0 {
		if err := x.writeVersions(ctx); err != nil {
			return err
		}
	}
	if e.nodes != nil {
		if err := w.Put(nodesFile, e.nodes); err != nil {
			return err
		}
	}
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
		progress.show(r.Seq+1-e.First, e.Last+1-e.First)
	}
	return nil
}

// exporter reads blobs where the past has them, and puts them into the archive.
type exporter struct {
	store.Blobs
	plan    *Export
	w       *archive.Writer
	content store.CheckpointWriter
	run     []byte
	name    string // of run
	count   int    // versions in run
}

// writeVersions writes the versions, oldest first.
func (x *exporter) writeVersions(ctx context.Context) error {
	for c, err := range assemble(ctx, x.plan.past.Versions, x.plan.From) {
		if err != nil {
			return err
		}
		err = checkRoot(c.Stored)
		if err == nil {
			err = x.version(ctx, c)
		}
		if err != nil {
			return fmt.Errorf("version %s: %w", c.Version(), err)
		}
		if c.Version() == x.plan.To {
			break
		}
	}
	return x.closeRun()
}

func (x *exporter) version(ctx context.Context, c chained) (err error) {
	m := proto.CloneOf(c.Manifest)
	m.Checkpoint = nil
	if x.count == 0 {
		x.name = versionFile(c.Version())
		if m.Checkpoint, err = x.content.Write(ctx, x, c.Snapshot, c.Version()); err != nil {
			return err
		}
	}
	if m.FoldCheckpoint, err = x.foldCheckpoint(ctx, c.Manifest.GetFoldCheckpoint()); err != nil {
		return err
	}
	if x.run, err = encodeUpdate(x.run, store.Update{Manifest: m, Delta: c.delta}); err != nil {
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
	if c == nil {
		return nil, nil
	}
	_, meta, err := x.plan.past.foldRows(ctx, c)
	if errors.Is(err, store.ErrNotFound) || err == nil && meta.GetPosition().GetSeq()+1 < x.plan.First {
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
	b, err := x.GetBlob(ctx, h)
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
	x.plan.Blobs++
	return h, x.w.Put(blobFile(h), b)
}
