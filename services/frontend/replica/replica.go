package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/failpoint"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/store"
)

// State is the world at one version. It is immutable.
type State struct {
	Manifest    *store.Manifest
	Snapshot    *store.Snapshot
	World       *world.World
	PushContext *index.PushContext
	// Received is when the version came from the chain; zero: it came from the
	// store.
	Received time.Time
	// Indexing is how long making World and PushContext took.
	Indexing time.Duration
}

// Version returns the version; zero for a nil State.
func (s *State) Version() ident.Position {
	if s == nil {
		return ident.Position{}
	}
	return store.VersionOf(s.Manifest.GetVersion())
}

// Root returns the hash of the content.
func (s *State) Root() ident.Hash {
	if s == nil {
		return ident.Hash{}
	}
	return s.Snapshot.Root()
}

func (s *State) snapshot() *store.Snapshot {
	if s == nil {
		return nil
	}
	return s.Snapshot
}

// Config of a Replica.
type Config struct {
	// Store belongs to the replica alone.
	Store store.Store
	// Serve is called with every new state and the inputs of generation that
	// differ from the state before, by the caller of Load or Step.
	Serve func(st *State, changed []index.Input)
	// Remember is called instead of Serve with up to Earlier versions before
	// one that is served: clients that reconnect may have them.
	Remember func(st *State, changed []index.Input)
	Earlier  int
	// OnMismatch is called if the chain's head contradicts the served version.
	OnMismatch func(*store.MismatchError)
	// OnChange is called when Persisted changes.
	OnChange func()
	Logger   *slog.Logger
}

// Replica follows the version chain. One goroutine calls Load and Step, one may
// call Persist; Run does both. The other methods are safe for concurrent use.
type Replica struct {
	cfg   Config
	state atomic.Pointer[State]

	// Owned by the goroutine that calls Load and Step.
	stepped bool // Step has changed the state

	// Owned by the goroutine that calls Persist.
	stored *store.Stored // the latest in Store; nil: unknown

	failed    atomic.Pointer[failure]
	persisted atomic.Bool
	newer     chan struct{} // something to persist; latest wins
}

// New returns a replica that has no version yet.
func New(cfg Config) *Replica {
	if cfg.Serve == nil {
		cfg.Serve = func(*State, []index.Input) {}
	}
	if cfg.OnMismatch == nil {
		cfg.OnMismatch = func(*store.MismatchError) {}
	}
	if cfg.OnChange == nil {
		cfg.OnChange = func() {}
	}
	return &Replica{cfg: cfg, newer: make(chan struct{}, 1)}
}

// State returns the served state; nil: none yet.
func (r *Replica) State() *State { return r.state.Load() }

// Persisted reports whether the store has the served version.
func (r *Replica) Persisted() bool { return r.persisted.Load() }

// Load serves what the store has. A store that cannot be read counts as empty:
// its content comes from the chain again.
func (r *Replica) Load(ctx context.Context) error {
	latest, err := r.cfg.Store.Latest(ctx)
	switch {
	case errors.Is(err, store.ErrEmpty):
		return nil
	case ctx.Err() != nil:
		return err
	case err != nil:
		r.cfg.Logger.Warn("the local replica cannot be read; starting without it", "error", err)
		return nil
	}
	if latest.Snapshot.Root() != store.RootOf(latest.Manifest) {
		r.cfg.Logger.Warn("the local replica does not match its manifest; starting without it", "version", latest.Version())
		return nil
	}
	for _, v := range r.earlier(ctx, latest.Version()) {
		st, changed := r.advance(v.Manifest, v.Snapshot, time.Time{})
		r.cfg.Remember(st, changed)
	}
	r.serve(latest.Manifest, latest.Snapshot, time.Time{})
	return nil
}

// earlier returns the versions before the latest one in the store, oldest
// first.
func (r *Replica) earlier(ctx context.Context, latest ident.Position) (all []store.Stored) {
	for m, err := range r.cfg.Store.Manifests(ctx) {
		if err != nil || len(all) == r.cfg.Earlier {
			break
		}
		v := store.VersionOf(m.GetVersion())
		if !v.Less(latest) {
			continue
		}
		stored, err := r.cfg.Store.At(ctx, v)
		if err != nil {
			r.cfg.Logger.Warn("an earlier version in the local replica cannot be read", "version", v, "error", err)
			break
		}
		all = append(all, stored)
	}
	slices.Reverse(all)
	return all
}

// Fetch gets the whole content of a version, as store.Chain.Fetch does.
type Fetch func(context.Context, ident.Position) (store.Stored, error)

// Step goes to the version of the last link. It fetches the whole content if
// the links do not lead there from the served version, or not to the root that
// they promise. After an error, nothing has changed.
func (r *Replica) Step(ctx context.Context, links []store.Update, fetch Fetch) error {
	if len(links) == 0 {
		return nil
	}
	target := links[len(links)-1].Manifest
	have := r.state.Load()
	version := store.VersionOf(target.GetVersion())
	if !have.Version().Less(version) {
		return nil
	}
	received := time.Now()
	failpoint.At(failpoint.FrontendReceived)
	if snapshots, ok := applyLinks(have, links); ok {
		last := len(links) - 1
		if !r.stepped {
			for i := max(0, last-r.cfg.Earlier); i < last; i++ {
				st, changed := r.advance(links[i].Manifest, snapshots[i], received)
				r.cfg.Remember(st, changed)
			}
		}
		r.stepped = true
		r.serve(target, snapshots[last], received)
		return nil
	}
	r.stepped = true
	whole, err := fetch(ctx, version)
	if err != nil {
		return fmt.Errorf("go to version %s: %w", version, err)
	}
	if root := whole.Snapshot.Root(); root != store.RootOf(whole.Manifest) || !have.Version().Less(whole.Version()) {
		return fmt.Errorf("go to version %s: fetched version %s with root %s: %w", version, whole.Version(), root, store.ErrCorrupt)
	}
	r.serve(whole.Manifest, whole.Snapshot, received)
	return nil
}

// applyLinks applies links that follow on st and returns the content after
// each. It reports false if a link does not fit or does not lead to its root.
func applyLinks(st *State, links []store.Update) ([]*store.Snapshot, bool) {
	if st == nil {
		return nil, false
	}
	snapshot, version, root := st.Snapshot, st.Version(), st.Root()
	snapshots := make([]*store.Snapshot, len(links))
	for i, l := range links {
		if v, r := store.PreviousOf(l.Manifest); v != version || r != root {
			return nil, false
		}
		snapshot = snapshot.With(l.Delta)
		version, root = store.VersionOf(l.Manifest.GetVersion()), store.RootOf(l.Manifest)
		if snapshot.Root() != root {
			return nil, false
		}
		snapshots[i] = snapshot
	}
	return snapshots, true
}

// serve serves a version.
func (r *Replica) serve(m *store.Manifest, snapshot *store.Snapshot, received time.Time) {
	next, changed := r.advance(m, snapshot, received)
	r.persisted.Store(false)
	r.cfg.Serve(next, changed)
	select {
	case r.newer <- struct{}{}:
	default: // it is waiting already
	}
}

// advance makes a version the state and returns the inputs of generation that
// change. Its cost depends on the difference to the version before, also across
// epochs.
func (r *Replica) advance(m *store.Manifest, snapshot *store.Snapshot, received time.Time) (*State, []index.Input) {
	start, have := time.Now(), r.state.Load()
	delta := store.Diff(have.snapshot(), snapshot)
	next := &State{Manifest: m, Snapshot: snapshot, Received: received}
	world, pc := world.NewWorld(), (*index.PushContext)(nil)
	if have != nil {
		world, pc = have.World, have.PushContext
	} else {
		pc = index.NewPushContext(world)
	}
	var keys []ident.Key
	next.World, keys = r.apply(world, delta)
	var changed []index.Input
	next.PushContext, changed = pc.Next(next.World, keys)
	next.Indexing = time.Since(start)
	r.state.Store(next)
	return next, changed
}

// apply applies rows to the world. A row that cannot be read is left out; the
// others are applied.
func (r *Replica) apply(w *world.World, d store.Delta) (*world.World, []ident.Key) {
	rows := make([]world.RowChange, 0, len(d.Put)+len(d.Remove))
	for _, row := range d.Put {
		rows = append(rows, world.RowChange{Row: row.Key, Value: row.Value})
	}
	for _, row := range d.Remove {
		rows = append(rows, world.RowChange{Row: row})
	}
	next, keys, err := w.Apply(world.Change{Rows: rows})
	if err == nil {
		return next, keys
	}
	next, keys = w, nil
	for _, row := range rows {
		after, changed, err := next.Apply(world.Change{Rows: []world.RowChange{row}})
		if err != nil {
			r.cfg.Logger.Error("a row of the published world cannot be read; serving without it", "row", row.Row, "error", err)
			// The value before must not be served either.
			if after, changed, err = next.Apply(world.Change{Rows: []world.RowChange{{Row: row.Row}}}); err != nil {
				continue
			}
		}
		next, keys = after, append(keys, changed...)
	}
	return next, keys
}
