package jury

import (
	"bytes"
	"maps"
	"slices"
	"time"

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
	// maxSuspects bounds the leader's tick.
	maxSuspects = 100
)

// report is the last report of a frontend.
type report struct {
	at       time.Time
	verdicts map[ident.Rejected]*reportv1.Verdict
}

// suspect is a resource that a proxy rejects.
type suspect struct {
	since time.Time // announced
	tried time.Time // last found guilty
}

// Hear takes a frontend's report.
func (j *Jury) Hear(now time.Time, r *reportv1.FrontendReport) {
	if r.GetLeaving() {
		delete(j.frontends, r.GetFrontend())
		return
	}
	latest := report{now, map[ident.Rejected]*reportv1.Verdict{}}
	for _, v := range r.GetVerdicts() {
		x := ident.Rejected{Type: v.GetTypeUrl(), Name: v.GetName(), Client: v.GetClient()}
		if len(v.GetSum()) == len(x.Sum) {
			x.Sum = [16]byte(v.GetSum())
			latest.verdicts[x] = v
		}
	}
	j.frontends[r.GetFrontend()] = latest
}

// Suspect makes suspects of the resources that some proxy rejects and that are
// not in quarantine. It reports whether there are new ones, which the leader
// must announce.
func (j *Jury) Suspect(now time.Time, f *fold.Fold) (more bool) {
	standing := standing(f)
	j.crowded = len(standing) >= MaxQuarantines
	maps.DeleteFunc(j.frontends, func(_ string, r report) bool { return now.Sub(r.at) > silentFor })
	rejected := map[ident.Rejected]bool{}
	for _, r := range j.frontends {
		for x, v := range r.verdicts {
			if v.GetRejected() > 0 && !standing[x] {
				rejected[x] = true
			}
		}
	}
	maps.DeleteFunc(j.suspects, func(x ident.Rejected, _ *suspect) bool { return !rejected[x] })
	for _, x := range sortedKeys(rejected) {
		if j.suspects[x] == nil && len(j.suspects) < maxSuspects {
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
	rejectedBy []string // two at most
	undecided  uint32
	applied    uint32
	all        bool // every frontend has reported about it
	message    string
	class      []byte
	goodSum    []byte // the content that the proxies have instead; nil if they differ
	good       ident.Position
}

func (j *Jury) evidence(x ident.Rejected) evidence {
	e := evidence{all: true}
	disagree := false
	for _, id := range slices.Sorted(maps.Keys(j.frontends)) {
		v := j.frontends[id].verdicts[x]
		if v == nil {
			e.all = false
			continue
		}
		e.undecided += v.GetUndecided()
		e.applied += v.GetApplied()
		for _, by := range v.GetRejectedBy() {
			if len(e.rejectedBy) < 2 && !slices.Contains(e.rejectedBy, by) {
				e.rejectedBy = append(e.rejectedBy, by)
			}
		}
		if e.class == nil && v.GetRejected() > 0 {
			e.class, e.message = v.GetClass(), v.GetMessage()
		}
		if len(v.GetGoodSum()) == 0 {
			continue
		}
		disagree = disagree || e.goodSum != nil && !bytes.Equal(e.goodSum, v.GetGoodSum())
		e.goodSum = v.GetGoodSum()
		if good := store.VersionOf(v.GetGood()); e.good.Less(good) {
			e.good = good
		}
	}
	if disagree {
		e.goodSum = nil
	}
	return e
}

// guilty reports whether a suspect must go into quarantine: two proxies, or the
// only one, have rejected it, and no proxy has applied it. Proxies that have not
// answered, and frontends that have not reported, get two seconds.
func (j *Jury) guilty(now time.Time, s *suspect, e evidence) bool {
	if e.applied > 0 || len(e.rejectedBy) == 0 || len(e.rejectedBy) == 1 && e.undecided > 0 {
		return false
	}
	decided := e.all && e.undecided == 0 && now.Sub(j.since) >= allReport
	return decided || now.Sub(s.since) >= decideWithin
}
