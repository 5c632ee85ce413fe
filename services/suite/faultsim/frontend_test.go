package faultsim

import (
	"context"
	"errors"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/replica"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/store"
	"meshlog.dev/store/memstore"
)

// reportEvery is how often a frontend repeats its report.
const reportEvery = 10 * time.Second

// frontendProc is a frontend's replica.Replica with a driver. The driver stands for
// the two goroutines of Replica.Run: one follows the chain, one persists.
type frontendProc struct {
	proc
	persister proc
	disk      *disk
	proxies

	// State of one life of the process.
	replica      *replica.Replica // nil: not loaded
	chain        *memstore.ChainFollower
	newer        bool // a version waits to be persisted
	at           ident.Position
	mismatch     *store.MismatchError // not reported yet
	mismatchTold time.Time
}

func newFrontend(s *sim, name string, proxyNames ...string) *frontendProc {
	f := &frontendProc{proc: proc{s: s, name: name}, persister: proc{s: s, name: name + "/disk"}, disk: newDisk(), proxies: proxies{names: proxyNames}}
	f.body, f.persister.body = f.run, f.persist
	f.twin, f.persister.twin = &f.persister, &f.proc
	return f
}

// serving returns the version that the frontend serves.
func (f *frontendProc) serving() (ident.Position, ident.Hash) {
	if f.replica == nil {
		return ident.Position{}, ident.Hash{}
	}
	return f.replica.State().Version(), f.replica.State().Root()
}

func (f *frontendProc) run() {
	defer func() { f.replica = nil }()
	ctx := context.Background()
	feed := &feedPort{&f.proc}
	f.chain, f.newer, f.at, f.mismatch = nil, false, ident.Position{}, nil
	f.begin()
	r := replica.New(replica.Config{
		Store: f.persister.open(f.disk, ""), Logger: f.s.logger(f.name),
		Serve:      f.serve,
		OnMismatch: func(m *store.MismatchError) { f.mismatch, f.mismatchTold = m, time.Time{} },
	})
	if err := r.Load(ctx); err != nil {
		panic(err)
	}
	f.replica = r
	for {
		f.pause()
		if f.mismatch != nil && f.s.time().Sub(f.mismatchTold) >= reportEvery {
			f.mismatchTold = f.s.time()
			f.s.report(f.name, f.mismatch)
		}
		f.think(f.s)
		f.report()
		if err := f.follow(ctx, r, feed); err != nil {
			f.s.note("%s: %v", f.name, err)
			f.chain = nil
		}
	}
}

// follow is one turn of following the chain.
func (f *frontendProc) follow(ctx context.Context, r *replica.Replica, feed *feedPort) error {
	if f.chain == nil {
		f.chain = f.s.chain.Follower()
	}
	have := r.State()
	links, ok, err := f.chain.Poll(have.Version(), have.Root())
	if rewound := (*store.MismatchError)(nil); errors.As(err, &rewound) {
		f.s.note("%s: %v", f.name, err)
		f.mismatch, f.mismatchTold = rewound, time.Time{}
		return nil
	}
	if err != nil || !ok {
		return err
	}
	if f.s.faults {
		links = f.stale(links)
	}
	return r.Step(ctx, links, feed.Fetch)
}

// stale returns the answer that a lagging replica of the chain may give instead.
func (f *frontendProc) stale(links []store.Update) []store.Update {
	switch x := f.s.rnd.Float64(); {
	case x < .2:
		return links[:1+f.s.rnd.IntN(len(links))]
	case x < .4:
		all := f.s.chainVersions()
		return []store.Update{all[f.s.rnd.IntN(len(all))].update}
	}
	return links
}

// serve receives each version that the frontend begins to serve. M5: the version
// never decreases.
func (f *frontendProc) serve(st *replica.State, changed []index.Input) {
	if !f.at.Less(st.Version()) {
		fail("M5", "%s went from version %s to %s, which is not newer", f.name, f.at, st.Version())
	}
	if v := f.s.byName[st.Version()]; f.replica != nil && v != nil && f.s.rewinds == 0 && v.content.Root() != st.Root() {
		fail("M2", "%s serves %s with other content than the published version", f.name, st.Version())
	}
	f.s.note("%s serves %s", f.name, st.Version())
	f.at, f.newer, f.mismatch = st.Version(), true, nil
	f.proxies.serve(f.s, st, changed)
}

// persist stands for the goroutine that writes the served version.
func (f *frontendProc) persist() {
	for {
		f.persister.pause()
		if f.replica == nil || !f.newer {
			continue
		}
		f.newer = false
		if err := f.replica.Persist(context.Background()); err != nil {
			f.s.note("%s: %v", f.persister.name, err)
			f.newer = true
		}
	}
}
