package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/builder/ledger"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// Source is a source as JSON and YAML show it.
type Source struct {
	Source   string `json:"source"`
	Instance string `json:"instance"`
	State    string `json:"state"` // following, listing, down, silent, not configured, at rest, gone
	// Frozen says that its objects stay as they are, because it cannot be read
	// or no watcher publishes for it.
	Frozen bool `json:"frozen"`
	// FrozenSince is absent if the time is not known.
	FrozenSince time.Time `json:"frozenSince,omitzero"`
	Holder      string    `json:"holder,omitempty"` // the watcher that publishes for it, or did last
	Session     string    `json:"session,omitempty"`
	Objects     int       `json:"objects"`
	Pending     uint64    `json:"pending,omitempty"` // changes that are not on the log yet
	// Synced says that a listing was complete in this epoch.
	Synced   bool     `json:"synced"`
	Partial  bool     `json:"partial,omitempty"`  // a part of it could not be read
	Required bool     `json:"required,omitempty"` // nothing is published before it is synced
	Standbys []string `json:"standbys,omitempty"`
	// FrozenKinds are the kinds that its last listing could not read: their
	// objects stay as they are.
	FrozenKinds []FrozenKind `json:"frozenKinds,omitempty"`

	Listed  time.Time `json:"listed,omitzero"`  // when its listing was complete on the log
	Changed time.Time `json:"changed,omitzero"` // when it changed last
	Heard   time.Time `json:"heard,omitzero"`   // when its watcher last wrote to the log

	// LogBytes is how many bytes of the log its records take, and LogShare what
	// part that is of what the log may hold, from 0 to 1.
	LogBytes uint64  `json:"logBytes,omitempty"`
	LogShare float64 `json:"logShare,omitempty"`

	Registry *Registry `json:"registry,omitempty"` // how a registry of services is read

	Problems []Diagnostic `json:"problems,omitempty"`
}

// Registry says how the watcher of a registry of services reads it (REG-15).
type Registry struct {
	Services  uint64 `json:"services"`
	Instances uint64 `json:"instances"`
	// Doubted is why its last listing removed nothing.
	Doubted string `json:"doubted,omitempty"`
	// Polled services report each change at once; those that are Swept are read in turn.
	Polled uint64 `json:"polled"`
	Swept  uint64 `json:"swept,omitempty"`
	// Remedy tells users what to change so that every service is polled.
	Remedy string `json:"remedy,omitempty"`
	// OldestRead is when the service was read that was not read for the longest time.
	OldestRead time.Time `json:"oldestRead,omitzero"`
	Error      string    `json:"error,omitempty"` // of the last read that failed
	ErrorTime  time.Time `json:"errorTime,omitzero"`
}

// FillsLog reports whether the source takes half of the log.
func (v *Source) FillsLog() bool { return v.LogShare >= .5 }

// FrozenKind is a kind that a source cannot be read for.
type FrozenKind struct {
	Kind    string `json:"kind"`
	Objects int    `json:"objects"`
}

// The states of a source that commands treat in a special way. A watcher reports
// StateDown; no watcher publishes for a source in the others.
const (
	StateDown   = "down"
	StateSilent = "silent"
	StateGone   = "gone" // silent, and without objects
	// StateNotConfigured is the state of a source that its process does not watch any more,
	// because it was taken off the file of sources (AGG-7).
	StateNotConfigured = "not configured"
	// StateRest is the state of a source of ident.API, which has no watcher: operators
	// apply its objects (API-4).
	StateRest = "at rest"
)

// Shard returns the key of the source.
func (v *Source) Shard() ident.Shard { return ident.Shard{Source: v.Source, Instance: v.Instance} }

// HasWatcher reports whether a watcher publishes for the source.
func (v *Source) HasWatcher() bool {
	return !slices.Contains([]string{StateSilent, StateNotConfigured, StateGone, StateRest}, v.State)
}

// Sources holds the reports of the fleet and the newest version, which together
// describe the sources.
type Sources struct {
	Log     EventLog
	Chain   past.Versions
	Fleet   *bus.Fleet
	Reports *bus.Reports
	Head    store.Stored // the newest version; zero if nothing was published

	world *world.World // of Head; nil: not made yet
}

// World returns the world of the newest version; nil if nothing was published.
func (s *Sources) World() (w *world.World, err error) {
	if s.world == nil && s.Head.Snapshot != nil {
		s.world, err = ledger.World(s.Head.Snapshot)
	}
	return s.world, err
}

// Sources asks the fleet, and reads the newest version. If only the latter fails, it
// returns the reports with the error.
func (t *Target) Sources(ctx context.Context) (s *Sources, err error) {
	s = &Sources{}
	if s.Fleet, err = t.Fleet(); err != nil {
		return nil, err
	}
	if s.Reports, err = s.Fleet.Reports(ctx, bus.Summary); err != nil {
		return nil, err
	}
	log, chain, err := t.open(ctx)
	if err != nil {
		return s, err
	}
	s.Log, s.Chain = log, chain
	s.Head, err = FetchHead(ctx, s.Chain)
	return s, err
}

// FetchHead returns the newest version with its content; zero if there is none.
func FetchHead(ctx context.Context, chain past.Versions) (store.Stored, error) {
	head, err := Head(ctx, chain)
	if err != nil || head.Manifest == nil {
		return store.Stored{}, err
	}
	return chain.Fetch(ctx, head.Version)
}

// Objects returns the objects of a source in the newest version.
func (s *Sources) Objects(of ident.Shard) []ident.Key {
	isOther := func(k ident.Key) bool { return k.Shard() != of }
	return slices.DeleteFunc(slices.Collect(past.Offered(s.Head.Snapshot)), isOther)
}

// Views returns all sources that the newest version has or a watcher reports,
// sorted.
func (s *Sources) Views(ctx context.Context) ([]Source, error) {
	byShard := map[ident.Shard]*Source{}
	of := func(shard ident.Shard) *Source {
		if byShard[shard] == nil {
			byShard[shard] = &Source{Source: shard.Source, Instance: shard.Instance, State: StateSilent}
		}
		return byShard[shard]
	}
	for _, m := range s.Head.Manifest.GetWatermark() {
		v := of(ident.Shard{Source: m.GetSource(), Instance: m.GetInstance()})
		v.Synced, v.Partial = m.GetSynced(), m.GetPartial()
	}
	for _, w := range s.Reports.Watchers {
		of(ident.Shard{Source: w.GetSource(), Instance: w.GetInstance()}).addReport(w)
	}
	for _, k := range Newest(s.Reports.Builders).GetFrozen() {
		v := of(ident.Shard{Source: k.GetSource(), Instance: k.GetInstance()})
		v.FrozenKinds = append(v.FrozenKinds, FrozenKind{k.GetKind(), int(k.GetKeys())})
	}
	for _, sh := range Newest(s.Reports.Builders).GetLogShares() {
		if sh.GetSource() == "" { // of builders and operators
			continue
		}
		v := of(ident.Shard{Source: sh.GetSource(), Instance: sh.GetInstance()})
		v.LogBytes = sh.GetBytes()
		if most := Newest(s.Reports.Builders).GetLogMaxBytes(); most > 0 {
			v.LogShare = float64(v.LogBytes) / float64(most)
		}
	}
	w, err := s.World()
	if err != nil {
		return nil, err
	}
	if w != nil {
		for _, r := range w.Policy().Required {
			of(r.Shard).Required = true
		}
	}
	views := []Source{}
	for _, v := range byShard {
		if err := s.addLastRecord(ctx, v); err != nil {
			return nil, err
		}
		v.freeze(len(s.Objects(v.Shard())))
		views = append(views, *v)
	}
	slices.SortFunc(views, func(a, b Source) int {
		return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Instance, b.Instance))
	})
	return views, nil
}

// addReport adds the report of one of the source's watchers.
func (v *Source) addReport(w *reportv1.WatcherReport) {
	switch w.GetState() {
	case "standby":
		v.Standbys = append(v.Standbys, w.GetHolder())
		return
	case StateNotConfigured: // another process may watch it, whose report counts
		if v.State == StateSilent {
			v.State, v.Holder = StateNotConfigured, w.GetHolder()
		}
		return
	case "": // it waits for a builder to begin the log
		return
	}
	v.State, v.Holder, v.Session = w.GetState(), w.GetHolder(), w.GetSession()
	v.Objects, v.Pending, v.Partial = int(w.GetKeys()), w.GetPending(), w.GetPartial()
	v.Listed, v.Changed = Stamp(w.GetListed().AsTime()), Stamp(w.GetChanged().AsTime())
	v.FrozenSince = Stamp(w.GetDown().AsTime())
	v.Problems = Diagnostics(w.GetDiagnostics(), v.Shard().String())
	if r := w.GetRegistry(); r != nil {
		v.Registry = &Registry{
			Services: r.GetServices(), Instances: r.GetInstances(), Doubted: r.GetDoubted(), Polled: r.GetPolled(), Swept: r.GetSwept(), Remedy: r.GetRemedy(),
			OldestRead: Stamp(r.GetOldestRead().AsTime()), Error: r.GetError(), ErrorTime: Stamp(r.GetErrorTime().AsTime()),
		}
	}
}

// freeze decides whether the source is gone or frozen; served is the number of
// its objects in the newest version.
func (v *Source) freeze(served int) {
	switch v.State {
	case StateSilent, StateNotConfigured:
		if v.Objects = served; served == 0 && len(v.Standbys) == 0 {
			v.State = StateGone
			return
		}
		if v.Source == ident.API {
			v.State, v.Partial = StateRest, false // it names no whole listing, because no source is behind it
			return
		}
		v.Frozen, v.FrozenSince = true, v.Heard
	case StateDown:
		v.Frozen = true
		v.Objects = cmp.Or(v.Objects, served) // its watcher may not have listed since it started
	}
}

// addLastRecord adds the last control record of the source.
func (s *Sources) addLastRecord(ctx context.Context, v *Source) error {
	r, err := s.Log.Last(ctx, events.ControlSubject(v.Shard()))
	switch {
	case errors.Is(err, events.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("last record of %s: %w", v.Shard(), err)
	}
	v.Heard, v.Holder = Stamp(r.Time), cmp.Or(v.Holder, r.Event.Actor)
	return nil
}
