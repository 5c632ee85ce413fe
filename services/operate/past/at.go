package past

import (
	"context"
	"errors"
	"fmt"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/store"
)

// At returns the content at a position: the published version or, if there is
// none or it is no longer kept, what the log makes. The Manifest is nil then.
func At(ctx context.Context, p *Past, v ident.Position) (store.Stored, error) {
	published, err := p.Versions.Fetch(ctx, v)
	if err == nil || !errors.Is(err, store.ErrNotFound) || p.Log == nil {
		if errors.Is(err, store.ErrNotFound) {
			err = fmt.Errorf("version %s %w", v, ErrNotPublished)
		}
		return published, err
	}
	r, err := foldTo(ctx, p, v.Seq)
	if err != nil {
		return store.Stored{}, err
	}
	if r.Position() != v {
		return store.Stored{}, fmt.Errorf("position %s %w: record %d is at %s", v, ErrNotThere, v.Seq, r.Position())
	}
	return store.Stored{Snapshot: r.Content()}, nil
}

// foldTo returns a Replay that stands at the record seq.
func foldTo(ctx context.Context, p *Past, seq uint64) (*Replay, error) {
	r, err := Begin(ctx, p, seq)
	if err != nil {
		return nil, err
	}
	return r, r.To(ctx, seq, nil, nil)
}

// ErrNotPublished says that a version is not on the chain.
var ErrNotPublished = errors.New("was never published, or is no longer kept")

// Locate returns the position of the record seq, that is, its epoch. The record
// need not have been published.
func Locate(ctx context.Context, p *Past, seq uint64) (ident.Position, error) {
	r, err := foldTo(ctx, p, seq)
	if err != nil {
		return ident.Position{}, err
	}
	return r.Position(), nil
}

// Fold returns the fold of a log up to the record seq. It is the caller's, who may apply
// records to it that are on no log.
func Fold(ctx context.Context, p *Past, seq uint64, progress Progress) (*fold.Fold, error) {
	r, err := Begin(ctx, p, seq)
	if err != nil {
		return nil, err
	}
	if err := r.To(ctx, seq, progress, nil); err != nil {
		return nil, err
	}
	return r.Fold(), nil
}
