package frontend

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/frontend/stream"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/store"
)

const (
	// maxVerdicts is how many resources are reported.
	maxVerdicts = 100
	// maxReason is how many bytes of a proxy's message are reported.
	maxReason = 1 << 10
	// urgentPause is the least time between two urgent reports of rejections;
	// the next regular report has the others.
	urgentPause = 100 * time.Millisecond
)

// urgent reports whether a rejection is to be reported at once: thousands of
// proxies may reject one resource.
func (s *Server) urgent() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Sub(s.lastUrgent) < urgentPause {
		return false
	}
	s.lastUrgent = now
	return true
}

// Suspects sets the resources that the leader suspects, from its tick: verdicts
// on them are reported. It does not block.
func (s *Server) Suspects(list []*reportv1.Suspect) {
	var subjects []ident.Rejected
	for _, p := range list {
		t, ok := ident.ResourceTypeOf(p.GetTypeUrl())
		if ok && len(p.GetSum()) == len(xds.Sum{}) {
			subjects = append(subjects, ident.Rejected{Type: t.URL(), Name: p.GetName(), Sum: xds.Sum(p.GetSum()), Client: p.GetClient()})
		}
	}
	slices.SortFunc(subjects, ident.Rejected.Compare)
	s.mu.Lock()
	before := s.suspects
	s.suspects = subjects
	s.mu.Unlock()
	if !slices.Equal(before, subjects) {
		s.cfg.OnChange(s.urgent())
	}
}

// tally counts what the proxies of one version did with a resource.
type tally struct {
	ident.Rejected
	t         ident.ResourceType
	asked     bool // the leader suspects it
	turn      int  // how many tallies before it come from the same place
	rejectors []rejector
	verdict   *reportv1.Verdict
}

// rejector is a proxy that rejects a resource, and why.
type rejector struct {
	*conn
	class index.ProxyClass
	stream.Rejection
}

// verdictReports returns what the proxies of conns did with the resources that
// the rejectors among them reject or the leader suspects: the first hundred,
// those of the leader before others, and one of each place before the second of
// another.
func (s *Server) verdictReports(conns []*conn, rejectors []rejector) []*reportv1.Verdict {
	s.mu.Lock()
	suspects := s.suspects
	s.mu.Unlock()
	tallies := map[ident.Rejected]*tally{}
	of := func(x ident.Rejected) *tally {
		if tallies[x] == nil {
			t, _ := ident.ResourceTypeOf(x.Type)
			v := &reportv1.Verdict{TypeUrl: x.Type, Name: x.Name, Sum: x.Sum[:], Client: x.Client}
			tallies[x] = &tally{Rejected: x, t: t, verdict: v}
		}
		return tallies[x]
	}
	for _, x := range suspects {
		of(x).asked = true
	}
	for _, r := range rejectors {
		t := of(ident.Rejected{Type: r.Type.URL(), Name: r.Name, Sum: r.Sum, Client: r.proxy.Client()})
		t.rejectors = append(t.rejectors, r)
	}
	if len(tallies) == 0 {
		return nil
	}
	all := slices.SortedFunc(maps.Values(tallies), func(a, b *tally) int { return a.Compare(b.Rejected) })
	all = inTurns(all)[:min(len(all), maxVerdicts)]
	byClient := map[string][]*tally{}
	for _, t := range all {
		byClient[t.Client] = append(byClient[t.Client], t)
	}
	for _, c := range conns {
		c.count(byClient[c.proxy.Client()])
	}
	verdicts := make([]*reportv1.Verdict, 0, len(all))
	for _, t := range all {
		t.explain()
		verdicts = append(verdicts, t.verdict)
	}
	return verdicts
}

// inTurns sorts tallies so that a client, which can reject many resources under
// many names, does not keep the rejections of others out of a report (XDS-5).
func inTurns(all []*tally) []*tally {
	from := map[place]int{}
	for _, t := range all {
		if t.asked || len(t.rejectors) == 0 {
			continue
		}
		at := t.rejectors[0].place
		for _, r := range t.rejectors {
			if from[r.place] < from[at] {
				at = r.place
			}
		}
		from[at]++
		t.turn = from[at] // after those of the leader
	}
	slices.SortStableFunc(all, func(a, b *tally) int { return cmp.Compare(a.turn, b.turn) })
	return all
}

// count adds what the client did to each tally.
func (c *conn) count(tallies []*tally) {
	c.withState(func(state *stream.Stream) {
		for _, t := range tallies {
			state.Count(t.verdict, t.t, t.Sum)
		}
	})
}

// explain adds to the verdict the rejectors' messages and the resource that they
// have instead.
func (t *tally) explain() {
	if len(t.rejectors) == 0 {
		return
	}
	v := t.verdict
	slices.SortFunc(t.rejectors, func(a, b rejector) int { return strings.Compare(a.proxy.ID, b.proxy.ID) })
	v.Rejectors = t.rejectorsOf()
	v.Message = strings.ToValidUTF8(t.rejectors[0].Message[:min(len(t.rejectors[0].Message), maxReason)], "")
	r := t.newest()
	v.Class = r.class.Only(t.t).Released([ident.ResourceTypes]string{}).Encode()
	if r.Good != nil {
		v.GoodSum, v.Good = r.Good.Sum[:], store.VersionProto(r.World)
	}
}

// newest returns the rejector that has the newest good content instead; any if
// none has one. Proxies that get changes at different times may have different ones.
func (t *tally) newest() rejector {
	newest := t.rejectors[0]
	for _, r := range t.rejectors {
		if r.Good != nil && (newest.Good == nil || newest.World.Less(r.World)) {
			newest = r
		}
	}
	return newest
}
