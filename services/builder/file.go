package builder

import (
	"context"
	"log/slog"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/builder/ledger"
	"meshlog.dev/services/internal/failpoint"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/store"
)

// file is the builder's own file: the versions that this builder published or
// compared, and its fold. It never holds a version that the chain does not have.
type file struct {
	store  store.Store
	log    *slog.Logger
	stored store.Stored   // the newest version
	at     ident.Position // of the fold
	err    error          // why the file is behind
}

// persist writes the head, at which the ledger stands: version, fold and cursor
// in one transaction.
func (f *file) persist(ctx context.Context, head *store.Manifest, l *ledger.Ledger) error {
	if !f.stored.Version().Less(l.Position()) {
		return nil
	}
	side, err := f.side(ctx, l.Fold())
	if err == nil {
		failpoint.At(failpoint.BuilderFile)
		err = f.store.Commit(ctx, f.stored.Version(), store.Commit{
			Manifest: head,
			Snapshot: l.Content(),
			Delta:    store.Diff(f.stored.Snapshot, l.Content()),
			Side:     side,
		})
	}
	// A crash here leaves a complete file, and records that are read again.
	if f.saved(l.Fold(), err) {
		failpoint.At(failpoint.BuilderFiled)
		f.stored = store.Stored{Manifest: head, Snapshot: l.Content()}
	} else if latest, err := f.store.Latest(ctx); err == nil {
		f.stored = latest // the write may have succeeded all the same
	}
	return ctx.Err()
}

// saveFold writes the fold alone.
func (f *file) saveFold(ctx context.Context, fold *fold.Fold) error {
	side, err := f.side(ctx, fold)
	if err == nil && !side.IsEmpty() {
		err = f.store.SaveSide(ctx, side)
	}
	f.saved(fold, err)
	return ctx.Err()
}

// side returns what changed in the fold since it was last written.
func (f *file) side(ctx context.Context, fold *fold.Fold) (store.Delta, error) {
	c := fold.Checkpoint()
	d := store.Delta{Remove: c.Remove}
	for _, r := range c.Put {
		d.Put = append(d.Put, store.Row(r))
	}
	if !c.Reset {
		return d, nil
	}
	// A crash after this leaves a file without a fold: the log is read again.
	return d, f.store.ClearSide(ctx)
}

// sideRows returns the rows of the fold in a store.
func sideRows(ctx context.Context, s store.Store) (rows []store.Row, err error) {
	for r, err := range s.Side(ctx) {
		if err != nil {
			return nil, err
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// saved notes whether a write succeeded. A builder whose file cannot be written
// publishes from memory; its owner decides whether it keeps the lease.
func (f *file) saved(fold *fold.Fold, err error) bool {
	if err != nil {
		fold.Rewrite()
		if f.err == nil {
			f.log.Error("cannot write the builder's file, it continues from memory", "error", err)
		}
	}
	if f.err = err; err == nil {
		f.at = fold.Position()
	}
	return err == nil
}
