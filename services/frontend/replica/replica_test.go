package replica_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/frontendtest"
	"meshlog.dev/services/frontend/replica"
	"meshlog.dev/services/mesh/index"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/store"
	"meshlog.dev/store/memstore"
)

// mesh is a world on a chain in memory.
type mesh struct {
	*frontendtest.Mesh
	chain *memstore.Chain
}

func newMesh(t testing.TB) *mesh {
	c := memstore.NewChain()
	return &mesh{frontendtest.NewMesh(t, c), c}
}

// rig is a replica that is driven step by step.
type rig struct {
	*replica.Replica
	t        *testing.T
	mesh     *mesh
	follower *memstore.ChainFollower
	fetched  int
	served   []ident.Position
	changed  [][]index.Input
}

func newRig(t *testing.T, mesh *mesh, s store.Store) *rig {
	r := &rig{t: t, mesh: mesh, follower: mesh.chain.Follower()}
	r.Replica = replica.New(replica.Config{
		Store: s, Logger: slog.New(slog.DiscardHandler),
		Serve: func(st *replica.State, changed []index.Input) {
			r.served, r.changed = append(r.served, st.Version()), append(r.changed, changed)
		},
	})
	return r
}

func file(f *memstore.File) store.Store { return memstore.Open(f, store.Retention{}) }

func (r *rig) fetch(ctx context.Context, v ident.Position) (store.Stored, error) {
	r.fetched++
	return r.mesh.chain.Fetch(ctx, v)
}

// step goes to the head of the chain.
func (r *rig) step() error {
	links, ok, err := r.follower.Poll(r.State().Version(), r.State().Root())
	if err != nil || !ok {
		return err
	}
	return r.Step(r.t.Context(), links, r.fetch)
}

func (r *rig) mustStep() {
	r.t.Helper()
	if err := r.step(); err != nil {
		r.t.Fatal(err)
	}
	if got, want := r.State().Root(), r.mesh.Last().Snapshot.Root(); got != want {
		r.t.Fatalf("root %s, want %s", got, want)
	}
}

func clusters(st *replica.State) []string {
	var out []string
	for _, r := range st.PushContext.Read().Raw(ident.CDS, "*") {
		out = append(out, r.Name)
	}
	return out
}

func TestFollow(t *testing.T) {
	mesh := newMesh(t)
	r := newRig(t, mesh, file(&memstore.File{}))
	mesh.Publish(Put("a", Cluster("a", 1)))
	r.mustStep()
	mesh.Publish(Put("b", Cluster("b", 1)))
	mesh.Publish(Put("e", Endpoints("b", 1)))
	r.mustStep()
	if r.fetched != 1 {
		t.Errorf("fetched %d times; only the first version needs it", r.fetched)
	}
	if diff := cmp.Diff([]string{"a", "b"}, clusters(r.State())); diff != "" {
		t.Error(diff)
	}
	want := []index.Input{
		index.RawInput(ident.CDS, "*"), index.RawInput(ident.EDS, "*"),
		index.RawOneInput(ident.CDS, "*", "b"), index.RawOneInput(ident.EDS, "*", "b"),
	}
	if diff := cmp.Diff(want, r.changed[1]); diff != "" {
		t.Errorf("changed inputs (-want +got):\n%s", diff)
	}
	if len(r.served) != 2 {
		t.Errorf("served %v; versions that arrive together are one step", r.served)
	}
}

func TestColdStart(t *testing.T) {
	mesh, f := newMesh(t), &memstore.File{}
	mesh.Publish(Put("a", Cluster("a", 1)))
	r := newRig(t, mesh, file(f))
	r.mustStep()
	if r.Persisted() {
		t.Error("persisted before Persist")
	}
	if err := r.Persist(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !r.Persisted() {
		t.Error("not persisted")
	}
	again := newRig(t, newMesh(t), file(f)) // the chain is empty
	if err := again.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if again.State().Version() != r.State().Version() || again.State().Root() != r.State().Root() {
		t.Errorf("loaded %s, want %s", again.State().Version(), r.State().Version())
	}
	if err := again.Persist(t.Context()); err != nil || !again.Persisted() {
		t.Errorf("a loaded version counts as persisted: %v, %v", again.Persisted(), err)
	}
}

// A replica that starts remembers the versions that clients may have: those in
// its store, and those that it missed while it was stopped.
func TestRemembers(t *testing.T) {
	mesh, f := newMesh(t), &memstore.File{}
	r := newRig(t, mesh, file(f))
	var all []ident.Position
	for timeout := range 6 {
		all = append(all, mesh.Publish(Put("a", Cluster("a", timeout+1))))
		if timeout < 4 {
			r.mustStep()
			if err := r.Persist(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	var got []string
	again := replica.New(replica.Config{
		Store: file(f), Logger: slog.New(slog.DiscardHandler), Earlier: 2,
		Remember: func(st *replica.State, _ []index.Input) { got = append(got, "remember "+st.Version().String()) },
		Serve:    func(st *replica.State, _ []index.Input) { got = append(got, "serve "+st.Version().String()) },
	})
	if err := again.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time, the replica merely lags
		links, _, err := mesh.chain.Follower().Poll(again.State().Version(), again.State().Root())
		if err == nil {
			err = again.Step(t.Context(), links, mesh.chain.Fetch)
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, mesh.Publish(Put("a", Cluster("a", 20))), mesh.Publish(Put("a", Cluster("a", 21))))
	}
	want := []string{
		"remember " + all[1].String(), "remember " + all[2].String(), "serve " + all[3].String(),
		"remember " + all[4].String(), "serve " + all[5].String(), "serve " + all[7].String(),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The latest version wins: versions between two Persists are skipped.
func TestPersistSkips(t *testing.T) {
	mesh, f := newMesh(t), &memstore.File{}
	r := newRig(t, mesh, file(f))
	for _, name := range []string{"a", "b", "c"} {
		mesh.Publish(Put(name, Cluster(name, 1)))
		r.mustStep()
		if name == "b" {
			continue
		}
		if err := r.Persist(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	kept := 0
	for _, err := range file(f).Manifests(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		kept++
	}
	if latest, _ := file(f).Latest(t.Context()); latest.Version() != r.State().Version() || kept != 2 {
		t.Errorf("%d versions up to %s", kept, latest.Version())
	}
}

// If a link does not lead to the root in its manifest, or does not follow the served
// version, the replica ignores the link and fetches the whole content.
func TestLinksAreProved(t *testing.T) {
	for name, spoil := range map[string]func(*store.Update){
		"another delta": func(u *store.Update) { u.Delta = store.Delta{Remove: []string{"v/x"}} },
		"another base":  func(u *store.Update) { u.Manifest.PreviousRoot = make([]byte, 32) },
	} {
		t.Run(name, func(t *testing.T) {
			mesh := newMesh(t)
			r := newRig(t, mesh, file(&memstore.File{}))
			mesh.Publish(Put("a", Cluster("a", 1)))
			r.mustStep()
			mesh.Publish(Put("b", Cluster("b", 1)))
			links, _, err := r.follower.Poll(r.State().Version(), r.State().Root())
			if err != nil {
				t.Fatal(err)
			}
			u := links[0]
			u.Manifest = cloneManifest(u.Manifest)
			spoil(&u)
			if err := r.Step(t.Context(), []store.Update{u}, r.fetch); err != nil {
				t.Fatal(err)
			}
			if r.fetched != 2 || r.State().Root() != mesh.Last().Snapshot.Root() {
				t.Errorf("fetched %d times, root %s", r.fetched, r.State().Root())
			}
		})
	}
}

func TestOnlyGreaterVersions(t *testing.T) {
	mesh := newMesh(t)
	r := newRig(t, mesh, file(&memstore.File{}))
	mesh.Publish(Put("a", Cluster("a", 1)))
	mesh.Publish(Put("b", Cluster("b", 1)))
	r.mustStep()
	have := r.State()

	// The same version, with other content.
	other := newMesh(t)
	other.Publish(Put("x", Cluster("x", 1)))
	other.Publish(Put("y", Cluster("y", 1)))
	links, _, err := other.chain.Follower().Poll(ident.Position{}, ident.Hash{})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Step(t.Context(), links, other.chain.Fetch); err != nil || r.State() != have {
		t.Errorf("went to %s: %v", r.State().Version(), err)
	}

	// The fetched content does not match its manifest.
	mesh.Publish(Put("c", Cluster("c", 1)))
	links, _, err = r.follower.Poll(ident.Position{}, ident.Hash{})
	if err != nil {
		t.Fatal(err)
	}
	bad := func(ctx context.Context, _ ident.Position) (store.Stored, error) {
		s, err := mesh.chain.Fetch(ctx, mesh.Last().Version())
		s.Snapshot = s.Snapshot.With(store.Delta{Remove: []string{Key("a").Row()}})
		return s, err
	}
	links[0].Manifest = cloneManifest(links[0].Manifest)
	links[0].Manifest.Previous = nil
	if err := r.Step(t.Context(), links, bad); !errors.Is(err, store.ErrCorrupt) || r.State() != have {
		t.Errorf("went to %s: %v", r.State().Version(), err)
	}
}

// A new epoch reports only the inputs that differ.
func TestEpoch(t *testing.T) {
	mesh := newMesh(t)
	r := newRig(t, mesh, file(&memstore.File{}))
	mesh.Publish(Put("a", Cluster("a", 1)), Put("e", Endpoints("a", 1)))
	r.mustStep()
	mesh.Epoch()
	mesh.Publish(Put("e", Endpoints("a", 2)))
	if err := r.Step(t.Context(), mustPoll(t, mesh), r.fetch); err != nil {
		t.Fatal(err)
	}
	want := []index.Input{index.RawOneInput(ident.EDS, "*", "a")}
	if diff := cmp.Diff(want, r.changed[1]); diff != "" {
		t.Errorf("changed inputs (-want +got):\n%s", diff)
	}
}

func mustPoll(t *testing.T, mesh *mesh) []store.Update {
	t.Helper()
	links, ok, err := mesh.chain.Follower().Poll(ident.Position{}, ident.Hash{})
	if err != nil || !ok {
		t.Fatalf("poll: %v, %v", ok, err)
	}
	return links
}

// A row that cannot be read does not stop the others.
func TestUnreadableRow(t *testing.T) {
	mesh := newMesh(t)
	r := newRig(t, mesh, file(&memstore.File{}))
	bad := Put("b", Cluster("b", 1)).Row()
	bad.Value = []byte{0xff}
	mesh.PublishRows(Put("a", Cluster("a", 1)).Row(), bad, Put("c", Cluster("c", 1)).Row())
	r.mustStep()
	if diff := cmp.Diff([]string{"a", "c"}, clusters(r.State())); diff != "" {
		t.Error(diff)
	}
	mesh.Publish(Put("b", Cluster("b", 2)))
	r.mustStep()
	if diff := cmp.Diff([]string{"a", "b", "c"}, clusters(r.State())); diff != "" {
		t.Error(diff)
	}
}

// failing is a store whose disk is full for a while, or whose answer is lost.
type failing struct {
	store.Store
	fail bool
	lost bool // the commit succeeds although it returns an error
}

func (f *failing) Commit(ctx context.Context, prev ident.Position, c store.Commit) error {
	if !f.fail {
		return f.Store.Commit(ctx, prev, c)
	}
	if f.lost {
		if err := f.Store.Commit(ctx, prev, c); err != nil {
			return err
		}
	}
	return errors.New("no space left on device")
}

func TestDiskFails(t *testing.T) {
	for name, lost := range map[string]bool{"nothing written": false, "written, answer lost": true} {
		t.Run(name, func(t *testing.T) {
			mesh := newMesh(t)
			disk := &failing{Store: file(&memstore.File{}), fail: true, lost: lost}
			r := newRig(t, mesh, disk)
			mesh.Publish(Put("a", Cluster("a", 1)))
			r.mustStep()
			if err := r.Persist(t.Context()); err == nil || !strings.Contains(err.Error(), "persist") || r.Persisted() {
				t.Errorf("persisted %v: %v", r.Persisted(), err)
			}
			mesh.Publish(Put("b", Cluster("b", 1)))
			r.mustStep() // the replica still serves
			disk.fail = false
			if err := r.Persist(t.Context()); err != nil || !r.Persisted() {
				t.Errorf("persisted %v: %v", r.Persisted(), err)
			}
		})
	}
}

// unreadable is a store that cannot be read.
type unreadable struct{ store.Store }

func (unreadable) Latest(context.Context) (store.Stored, error) {
	return store.Stored{}, store.ErrCorrupt
}

func TestUnreadableStore(t *testing.T) {
	mesh := newMesh(t)
	mesh.Publish(Put("a", Cluster("a", 1)))
	r := newRig(t, mesh, unreadable{file(&memstore.File{})})
	if err := r.Load(t.Context()); err != nil || r.State() != nil {
		t.Errorf("loaded %s: %v", r.State().Version(), err)
	}
	r.mustStep()
}

// Run stores the first version at once and later versions within 250 ms, and reports
// a rewound chain once.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh, f := newMesh(t), &memstore.File{}
		var rewound []*store.MismatchError
		r := replica.New(replica.Config{
			Store: file(f), Logger: slog.New(slog.DiscardHandler),
			OnMismatch: func(err *store.MismatchError) { rewound = append(rewound, err) },
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Run(ctx, mesh.chain) }()
		stored := func() ident.Position {
			latest, _ := file(f).Latest(t.Context())
			return latest.Version()
		}

		first := mesh.Publish(Put("a", Cluster("a", 1)))
		synctest.Wait()
		if stored() != first {
			t.Errorf("stored %s, want %s", stored(), first)
		}
		mesh.Publish(Put("b", Cluster("b", 1)))
		third := mesh.Publish(Put("c", Cluster("c", 1)))
		synctest.Wait()
		if stored() != first || r.State().Version() != third || r.Persisted() {
			t.Errorf("stored %s at once; served %s; persisted %v", stored(), r.State().Version(), r.Persisted())
		}
		<-time.After(250 * time.Millisecond) // of the bubble's time
		synctest.Wait()
		if stored() != third || !r.Persisted() {
			t.Errorf("stored %s after 250 ms, want %s", stored(), third)
		}

		mesh.chain.Rewind(2)
		synctest.Wait()
		if len(rewound) != 1 || rewound[0].Have != third {
			t.Errorf("reported %v", rewound)
		}
		if r.State().Version() != third {
			t.Errorf("went back to %s", r.State().Version())
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func cloneManifest(m *store.Manifest) *store.Manifest {
	return &store.Manifest{Version: m.GetVersion(), Root: m.GetRoot(), Previous: m.GetPrevious(), PreviousRoot: m.GetPreviousRoot()}
}

// unreachable is a chain that cannot be followed.
type unreachable struct{ *memstore.Chain }

func (unreachable) Follow(context.Context) (store.Follower, error) {
	return nil, errors.New("no leader")
}

// BUS-4: a replica that cannot follow the chain says why, and serves what it has.
func TestFollowingFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t)
		r := replica.New(replica.Config{Store: file(&memstore.File{}), Logger: slog.New(slog.DiscardHandler)})
		if err := r.Following(); err != nil {
			t.Errorf("before Run: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx, unreachable{m.chain}) }()
		<-time.After(time.Minute) // of the bubble's clock
		if err := r.Following(); err == nil || !strings.Contains(err.Error(), "no leader") {
			t.Errorf("a minute later: %v, want the reason", err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		<-time.After(time.Minute)
		if err := r.Following(); err != nil {
			t.Errorf("a minute after the last failure: %v", err)
		}
	})
}
