package past

import (
	"context"
	"errors"
	"fmt"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/builder/ledger"
	"meshlog.dev/services/mesh/world"
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
	r, err := Begin(ctx, p, v.Seq)
	if err != nil {
		return store.Stored{}, err
	}
	if err := r.To(ctx, v.Seq, nil); err != nil {
		return store.Stored{}, err
	}
	if r.Position() != v {
		return store.Stored{}, fmt.Errorf("position %s %w: record %d is at %s", v, ErrNotThere, v.Seq, r.Position())
	}
	return store.Stored{Snapshot: r.Content()}, nil
}

// ErrNotPublished says that a version is not on the chain.
var ErrNotPublished = errors.New("was never published, or is no longer kept")

// World returns the world at a position, as a frontend has it.
func World(ctx context.Context, p *Past, v ident.Position) (*world.World, error) {
	at, err := At(ctx, p, v)
	if err != nil {
		return nil, err
	}
	return ledger.World(at.Snapshot)
}

// Locate returns the position of the record seq, that is, its epoch. The record
// need not have been published.
func Locate(ctx context.Context, p *Past, seq uint64) (ident.Position, error) {
	r, err := Begin(ctx, p, seq)
	if err != nil {
		return ident.Position{}, err
	}
	if err := r.To(ctx, seq, nil); err != nil {
		return ident.Position{}, err
	}
	return r.Position(), nil
}
