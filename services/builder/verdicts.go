package builder

import (
	"bytes"
	"maps"
	"slices"
	"time"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/store"
)

const (
	// A frontend that has reported nothing for that long is not waited for.
	silentFor = 30 * time.Second
	// Frontends report every 10 s: after that long all are known.
	allReport = 11 * time.Second
	// decideWithin is how long after a suspicion was announced proxies may take
	// to say what they think, and frontends to report it.
	decideWithin = 2 * time.Second
	// maxSuspects bounds what is announced.
	maxSuspects = 100
)

func suspectProto(x ident.Rejected) *reportv1.Suspect {
	return &reportv1.Suspect{TypeUrl: x.Type, Name: x.Name, Sum: x.Sum[:], Client: x.Client}
}

// opinions is what frontends say of rejections, as they last said it.
type opinions struct {
	since     time.Time // when the first report may have come
	frontends map[string]said
	suspects  map[ident.Rejected]*suspect // of a leader
}

// said is what one frontend says.
type said struct {
	at       time.Time
	verdicts map[ident.Rejected]*reportv1.Verdict
}

// suspect is what some rejects and all are asked about.
type suspect struct {
	since time.Time // when that was announced
	tried time.Time // when it was last put into quarantine, as far as that went
}

// hear takes a frontend's report.
func (f *opinions) hear(now time.Time, r *reportv1.FrontendReport) {
	if r.GetLeaving() {
		delete(f.frontends, r.GetFrontend())
		return
	}
	s := said{at: now}
	for _, v := range r.GetVerdicts() {
		x := ident.Rejected{Type: v.GetTypeUrl(), Name: v.GetName(), Client: v.GetClient()}
		if len(v.GetSum()) != len(x.Sum) {
			continue
		}
		x.Sum = [16]byte(v.GetSum())
		if s.verdicts == nil {
			s.verdicts = map[ident.Rejected]*reportv1.Verdict{}
		}
		s.verdicts[x] = v
	}
	if f.frontends == nil {
		f.frontends = map[string]said{}
	}
	f.frontends[r.GetFrontend()] = s
}

// suspectAnew makes suspects of what somebody rejects and is not standing in
// quarantine. It says whether there are new ones.
func (f *opinions) suspectAnew(now time.Time, standing map[ident.Rejected]bool) (more bool) {
	maps.DeleteFunc(f.frontends, func(_ string, s said) bool { return now.Sub(s.at) > silentFor })
	rejected := map[ident.Rejected]bool{}
	for _, s := range f.frontends {
		for x, v := range s.verdicts {
			if v.GetRejected() > 0 && !standing[x] {
				rejected[x] = true
			}
		}
	}
	maps.DeleteFunc(f.suspects, func(x ident.Rejected, _ *suspect) bool { return !rejected[x] })
	for _, x := range sortedSubjects(rejected) {
		if f.suspects[x] != nil || len(f.suspects) >= maxSuspects {
			continue
		}
		if f.suspects == nil {
			f.suspects = map[ident.Rejected]*suspect{}
		}
		f.suspects[x] = &suspect{since: now}
		more = true
	}
	return more
}

func sortedSubjects[V any](m map[ident.Rejected]V) []ident.Rejected {
	return slices.SortedFunc(maps.Keys(m), ident.Rejected.Compare)
}

// evidence is what the fleet says of a subject.
type evidence struct {
	rejectedBy []string // two at most
	undecided  uint32
	applied    uint32
	all        bool // every frontend has said something
	message    string
	class      []byte
	goodSum    []byte // what those who rejected it have instead, if they have the same
	good       ident.Position
}

func (f *opinions) evidence(x ident.Rejected) evidence {
	e := evidence{all: true}
	disagree := false
	for _, id := range slices.Sorted(maps.Keys(f.frontends)) {
		v := f.frontends[id].verdicts[x]
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

// confirmed says whether a subject is to be put into quarantine: two proxies, or
// the only one, have rejected it, and none has applied it. Where some have not
// said anything yet, they have two seconds; so has a frontend.
func (f *opinions) confirmed(now time.Time, s *suspect, e evidence) bool {
	if e.applied > 0 || len(e.rejectedBy) == 0 || len(e.rejectedBy) == 1 && e.undecided > 0 {
		return false
	}
	decided := e.all && e.undecided == 0 && now.Sub(f.since) >= allReport
	return decided || now.Sub(s.since) >= decideWithin
}
