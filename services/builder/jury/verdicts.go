package jury

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/store"
)

const (
	// silentFor is how long a frontend may report nothing before the jury stops
	// waiting for it.
	silentFor = 30 * time.Second
	// allReport is how long it takes until every frontend has reported: they
	// report every 10 s.
	allReport = 11 * time.Second
	// decideWithin is the time that proxies have to answer, and frontends to report,
	// after the leader has announced a suspect.
	decideWithin = 2 * time.Second
	// maxSuspects bounds the leader's tick. maxOfFrontend of them may be known from one
	// frontend alone: the identities in its verdicts are what it says.
	maxSuspects   = 100
	maxOfFrontend = maxSuspects / 4
	// Limits of what is kept of reports, because a client with the frontends' key
	// reports under as many names as it likes: frontends and their names, verdicts of each
	// (more than one reports), and bytes of all verdicts.
	maxFrontends = 1000
	maxVerdicts  = 1000
	maxHeard     = 64 << 20
	maxName      = 256 // bytes
)

// report is the last report of a frontend.
type report struct {
	at       time.Time
	made     time.Time // by the frontend's clock; zero: unknown
	verdicts map[ident.Rejected]*reportv1.Verdict
	bytes    int // that the verdicts take
	serving  ident.Position
	reached  *reportv1.Reached // by the running rollout; nil: none runs
}

// suspect is a resource that a proxy rejects.
type suspect struct {
	since time.Time // announced
	tried time.Time // last found guilty
}

// Hear takes a frontend's report. What exceeds the limits does not count.
func (j *Jury) Hear(now time.Time, r *reportv1.FrontendReport) {
	name := r.GetFrontend()
	before, known := j.frontends[name]
	latest := report{at: now, verdicts: map[ident.Rejected]*reportv1.Verdict{}, serving: store.VersionOf(r.GetServing())}
	if reached := r.GetReached(); len(reached.GetRollout()) <= maxName && len(reached.GetApplied()) <= maxVerdicts {
		latest.reached = reached
	}
	if r.GetTime() != nil {
		latest.made = r.GetTime().AsTime()
	}
	if known && r.GetTime() != nil && before.made.Equal(latest.made) {
		// Another message of the same report.
		latest.verdicts, latest.bytes = before.verdicts, before.bytes
	}
	j.forget(name)
	if r.GetLeaving() {
		return
	}
	if len(j.frontends) >= maxFrontends {
		j.expire(now)
	}
	if len(j.frontends) >= maxFrontends || len(name) > maxName {
		j.dropped = now
		return
	}
	for _, v := range r.GetVerdicts() {
		x := ident.Rejected{Type: v.GetTypeUrl(), Name: v.GetName(), Client: v.GetClient()}
		if len(v.GetSum()) != len(x.Sum) {
			continue
		}
		x.Sum = [16]byte(v.GetSum())
		old, twice := latest.verdicts[x]
		bytes := latest.bytes + proto.Size(v) - proto.Size(old)
		if !twice && len(latest.verdicts) >= maxVerdicts || j.heard+bytes > maxHeard {
			j.dropped = now
			continue
		}
		latest.verdicts[x], latest.bytes = v, bytes
	}
	j.frontends[name] = latest
	j.heard += latest.bytes
}

// forget drops the last report of a frontend.
func (j *Jury) forget(frontend string) {
	j.heard -= j.frontends[frontend].bytes
	delete(j.frontends, frontend)
}

// expire drops the reports of frontends that are silent.
func (j *Jury) expire(now time.Time) {
	for name, r := range j.frontends {
		if now.Sub(r.at) > silentFor {
			j.forget(name)
		}
	}
}

// Suspect makes suspects of the resources that some proxy rejects and that are
// not in quarantine. It reports whether there are new ones, which the leader
// must announce. One identity or address may cause as many suspects and quarantines
// as it may cause quarantines, and one frontend a share of the suspects, so that
// neither keeps others out.
func (j *Jury) Suspect(now time.Time, f *fold.Fold) (more bool) {
	standing := standing(f)
	j.crowded = len(f.Quarantines()) >= MaxQuarantines
	j.crowders = nil
	charged := charges(f)
	for by, n := range charged {
		if n >= MaxByOne {
			j.crowders = append(j.crowders, by)
		}
	}
	slices.Sort(j.crowders)
	j.expire(now)
	j.deaf = !j.dropped.IsZero() && now.Sub(j.dropped) <= silentFor
	rejected := map[ident.Rejected]bool{}
	for _, r := range j.frontends {
		for x, v := range r.verdicts {
			if v.GetRejected() > 0 && !standing[x] {
				rejected[x] = true
			}
		}
	}
	maps.DeleteFunc(j.suspects, func(x ident.Rejected, _ *suspect) bool { return !rejected[x] })
	told := map[string]int{} // suspects by the frontend that is charged
	for _, x := range sortedKeys(j.suspects) {
		if e := j.evidence(x); len(e.places) > 0 {
			charged[e.charge(charged)]++
			told[least(e.frontends, told)]++
		}
	}
	for _, x := range sortedKeys(rejected) {
		if j.suspects[x] != nil || len(j.suspects) >= maxSuspects {
			continue
		}
		e := j.evidence(x)
		if len(e.places) == 0 {
			continue
		}
		by, from := e.charge(charged), least(e.frontends, told)
		if charged[by] < MaxByOne && told[from] < maxOfFrontend {
			charged[by]++
			told[from]++
			j.suspects[x] = &suspect{since: now}
			more = true
		}
	}
	return more
}

func sortedKeys[V any](m map[ident.Rejected]V) []ident.Rejected {
	return slices.SortedFunc(maps.Keys(m), ident.Rejected.Compare)
}

// evidence is what all frontends report about a resource.
type evidence struct {
	places    []place  // that it was rejected from, sorted
	frontends []string // that know of a place
	undecided uint32
	applied   uint32
	all       bool // every frontend has reported about it
	message   string
	class     []byte
	goodSum   []byte // the newest content that proxies have instead, or nil
	good      ident.Position
}

func (j *Jury) evidence(x ident.Rejected) evidence {
	e := evidence{all: true}
	for _, id := range slices.Sorted(maps.Keys(j.frontends)) {
		v := j.frontends[id].verdicts[x]
		if v == nil {
			e.all = false
			continue
		}
		e.undecided += v.GetUndecided()
		e.applied += v.GetApplied()
		for _, r := range v.GetRejectors() {
			e.places = append(e.places, placeOf(r))
		}
		if len(v.GetRejectors()) > 0 {
			e.frontends = append(e.frontends, id)
		}
		if e.class == nil && v.GetRejected() > 0 {
			e.class, e.message = v.GetClass(), v.GetMessage()
		}
		if good := store.VersionOf(v.GetGood()); len(v.GetGoodSum()) > 0 && e.good.Less(good) {
			e.goodSum, e.good, e.class = v.GetGoodSum(), good, v.GetClass() // that class had it
		}
	}
	slices.SortFunc(e.places, place.compare)
	e.places = slices.Compact(e.places)
	return e
}

// place is where a proxy connects from. Proxies of one place count as one: the ids
// of nodes are what clients say, and one client can say many.
type place struct {
	identity, address string
	proxy             string // only if neither is known
}

func placeOf(r *reportv1.Rejector) place {
	if r.GetIdentity() == "" && r.GetAddress() == "" {
		return place{proxy: r.GetProxy()}
	}
	return place{identity: r.GetIdentity(), address: r.GetAddress()}
}

// charged returns the name under which the quarantines of a place are counted.
func (p place) charged() string { return cmp.Or(p.identity, p.address, p.proxy) }

func (p place) compare(o place) int {
	return cmp.Or(cmp.Compare(p.identity, o.identity), cmp.Compare(p.address, o.address), cmp.Compare(p.proxy, o.proxy))
}

// charge returns the identity or address to which a quarantine is charged: of
// those that rejected the resource the one that has the fewest.
func (e *evidence) charge(charged map[string]int) string {
	var names []string
	for _, p := range e.places {
		names = append(names, p.charged())
	}
	return least(names, charged)
}

// least returns the first of the names that has the fewest.
func least(names []string, has map[string]int) string {
	return slices.MinFunc(names, func(a, b string) int { return cmp.Compare(has[a], has[b]) })
}

// guilty reports whether a suspect must go into quarantine: proxies of two places,
// or all there are, have rejected it, and no proxy has applied it. Proxies that have not
// answered, and frontends that have not reported, get two seconds.
func (j *Jury) guilty(now time.Time, s *suspect, e evidence) bool {
	if e.applied > 0 || len(e.places) == 0 || len(e.places) == 1 && e.undecided > 0 {
		return false
	}
	decided := e.all && e.undecided == 0 && now.Sub(j.since) >= allReport
	return decided || now.Sub(s.since) >= decideWithin
}
