package frontend

import (
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/replica"
)

// keptServed is of how many versions it is known when they passed which stage:
// an ACK of an older one is not timed.
const keptVersions = 16

// served is when a version passed which stage; zero: that is not known.
type versionTimes struct {
	version ident.Position
	// observed is when the first change in it was seen, by the watcher's clock,
	// published when the leader published it, by the leader's.
	observed, published time.Time
	had                 time.Time // when the frontend had it, before what proxies are served of it was made
	trace               *convergence
}

// servedOf is what is known of a state that is about to be served.
func timesOf(st *replica.State, had time.Time) versionTimes {
	v := versionTimes{version: st.Version(), published: timeOf(st.Manifest.GetPublishTime()), had: had}
	if v.observed = timeOf(st.Manifest.GetFirstObservedTime()); v.observed.IsZero() {
		v.observed = v.published
	}
	return v
}

// recent is the versions that were served last, newest first. One goroutine
// adds to it, any may look.
type recentVersions struct {
	versions atomic.Pointer[[]versionTimes]
}

func (r *recentVersions) add(v versionTimes) {
	versions := []versionTimes{v}
	if before := r.versions.Load(); before != nil {
		versions = append(versions, (*before)[:min(len(*before), keptVersions-1)]...)
	}
	r.versions.Store(&versions)
}

// find is a version, or nil if it is not one of them.
func (r *recentVersions) find(v ident.Position) *versionTimes {
	versions := r.versions.Load()
	if versions == nil {
		return nil
	}
	if i := slices.IndexFunc(*versions, func(s versionTimes) bool { return s.version == v }); i >= 0 {
		return &(*versions)[i]
	}
	return nil
}

// timeOf is a time on the wire; zero where there is none.
func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

// lag is how far what is served is behind the head of the chain, as far as that
// is known: who protects it says so.
type lag struct {
	served, head ident.Position
	// since is when the first head was heard of that is not reached yet, mark
	// which one that was.
	since time.Time
	mark  ident.Position
}

// serves says which version is served.
func (l *lag) serves(now time.Time, v ident.Position) {
	l.served = v
	if !l.since.IsZero() && !v.Less(l.mark) {
		l.since = time.Time{}
		l.hears(now, l.head)
	}
}

// hears says where the head is.
func (l *lag) hears(now time.Time, v ident.Position) {
	l.head = v
	if l.since.IsZero() && l.served.Less(v) {
		l.since, l.mark = now, v
	}
}

// behind is for how long, and by how many records of the log in the epoch of
// the head, what is served has been behind it.
func (l *lag) behind(now time.Time) (d time.Duration, records uint64) {
	if l.since.IsZero() || !l.served.Less(l.head) {
		return 0, 0
	}
	records = l.head.Seq
	if l.served.Epoch == l.head.Epoch {
		records -= l.served.Seq
	}
	return now.Sub(l.since), records
}
