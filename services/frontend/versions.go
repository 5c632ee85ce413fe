package frontend

import (
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/replica"
)

// keptVersions is the number of versions whose stage times are kept: the ACK of an
// older one is not timed.
const keptVersions = 16

// versionTimes is when a version passed each stage; zero: unknown.
type versionTimes struct {
	version ident.Position
	// observed is when a watcher saw the first change in it, by the watcher's
	// clock; published is when the leader published it, by the leader's.
	observed, published time.Time
	had                 time.Time // when the frontend had received it, before it made resources
	trace               *convergence
}

// timesOf returns the times of a state that is about to be served.
func timesOf(st *replica.State, had time.Time) versionTimes {
	v := versionTimes{version: st.Version(), published: timeOf(st.Manifest.GetPublishTime()), had: had}
	if v.observed = timeOf(st.Manifest.GetFirstObservedTime()); v.observed.IsZero() {
		v.observed = v.published
	}
	return v
}

// recentVersions holds the versions that were served last, newest first. One
// goroutine adds to it, any may read.
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

// find returns the times of a version, or nil.
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

// timeOf returns a time from the wire; zero if there is none.
func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

// lag is how far the served version is behind the head of the chain, as far as
// the head is known.
type lag struct {
	served, head ident.Position
	// mark is the oldest known head that is not served yet, and since is when it
	// became known.
	since time.Time
	mark  ident.Position
}

// serves sets the served version.
func (l *lag) serves(now time.Time, v ident.Position) {
	l.served = v
	if !l.since.IsZero() && !v.Less(l.mark) {
		l.since = time.Time{}
		l.headIs(now, l.head)
	}
}

// headIs sets the head.
func (l *lag) headIs(now time.Time, v ident.Position) {
	l.head = v
	if l.since.IsZero() && l.served.Less(v) {
		l.since, l.mark = now, v
	}
}

// behind returns for how long, and by how many records of the log in the head's
// epoch, the served version has been behind the head.
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
