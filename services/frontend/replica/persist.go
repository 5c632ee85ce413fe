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
	err := r.persist(ctx, st)
	if errors.Is(err, store.ErrConflict) {
		r.storedKnown = false
		err = r.persist(ctx, st)
	}
	if err != nil {
		// The write may have succeeded nevertheless.
		r.storedKnown = false
		r.setPersisted(false)
		return fmt.Errorf("persist: %w", err)
	}
	r.stored, r.storedKnown = store.Stored{Manifest: st.Manifest, Snapshot: st.Snapshot}, true
	r.setPersisted(r.state.Load() == st)
	return nil
}

func (r *Replica) persist(ctx context.Context, st *State) error {
	if !r.storedKnown {
		latest, err := r.cfg.Store.Latest(ctx)
		if err != nil && !errors.Is(err, store.ErrEmpty) {
			return err
		}
		r.stored, r.storedKnown = latest, true
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
