package replica

import (
	"context"
	"errors"
	"fmt"

	"meshlog.dev/services/internal/failpoint"
	"meshlog.dev/store"
)

// Persist writes the served version to the store if the store lacks it, and
// skips the versions between.
func (r *Replica) Persist(ctx context.Context) error {
	st := r.state.Load()
	if st == nil {
		return nil
	}
	if err := r.persist(ctx, st); err != nil {
		r.stored = nil // the write may have succeeded nevertheless
		r.setPersisted(false)
		return fmt.Errorf("persist: %w", err)
	}
	r.stored = &store.Stored{Manifest: st.Manifest, Snapshot: st.Snapshot}
	r.setPersisted(r.state.Load() == st)
	return nil
}

func (r *Replica) persist(ctx context.Context, st *State) error {
	if r.stored == nil {
		latest, err := r.cfg.Store.Latest(ctx)
		if err != nil && !errors.Is(err, store.ErrEmpty) {
			return err
		}
		r.stored = &latest
	}
	if r.stored.Version() == st.Version() && r.stored.Snapshot.Root() == st.Root() {
		return nil
	}
	failpoint.At(failpoint.FrontendPersist)
	err := r.cfg.Store.Commit(ctx, r.stored.Version(), store.Commit{
		Manifest: st.Manifest,
		Snapshot: st.Snapshot,
		Delta:    store.Diff(r.stored.Snapshot, st.Snapshot),
	})
	if err == nil {
		failpoint.At(failpoint.FrontendPersisted)
	}
	return err
}

func (r *Replica) setPersisted(is bool) {
	if r.persisted.Swap(is) != is {
		r.cfg.OnChange()
	}
}
