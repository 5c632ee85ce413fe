package frontend

import (
	"maps"
	"slices"
	"strings"
	"sync"
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

// verdictTracker knows the streams and the resources for which verdicts are
// reported: what the proxies of this frontend did with resources that some
// proxy rejects, here or at another frontend. It costs nothing while none does.
type verdictTracker struct {
	mu         sync.Mutex
	rejecting  map[*conn]struct{} // streams that may have rejected something
	suspects   []ident.Rejected   // resources that the leader asks about
	lastUrgent time.Time          // when the last urgent report was made
}

// rejected adds a stream that rejected something, and reports whether that is
// urgent.
func (o *verdictTracker) rejected(c *conn) (hurry bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.rejecting == nil {
		o.rejecting = map[*conn]struct{}{}
	}
	o.rejecting[c] = struct{}{}
	return o.urgent()
}

// gone removes a stream.
func (o *verdictTracker) gone(c *conn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.rejecting, c)
}

// urgent limits urgent reports: thousands of proxies may reject one resource.
// mu is held.
func (o *verdictTracker) urgent() bool {
	now := time.Now()
	if now.Sub(o.lastUrgent) < urgentPause {
		return false
	}
	o.lastUrgent = now
	return true
}

// suspect replaces the resources that the leader suspects. It reports whether
// they changed, and whether that is urgent.
func (o *verdictTracker) suspect(subjects []ident.Rejected) (changed, hurry bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if slices.Equal(o.suspects, subjects) {
		return false, false
	}
	o.suspects = subjects
	return true, o.urgent()
}

// known returns the streams that may reject something, and the suspects.
func (o *verdictTracker) known() ([]*conn, []ident.Rejected) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Keys(o.rejecting)), o.suspects
}

// Suspects sets the resources that the leader suspects, from its tick: verdicts
// on them are reported. It does not block.
func (s *Server) Suspects(list []*reportv1.Suspect) {
	var subjects []ident.Rejected
	for _, p := range list {
		t, ok := ident.ResourceTypeOf(p.GetTypeUrl())
		sum := xds.Sum{}
		if ok && len(p.GetSum()) == len(sum) {
			subjects = append(subjects, ident.Rejected{Type: t.URL(), Name: p.GetName(), Sum: xds.Sum(p.GetSum()), Client: p.GetClient()})
		}
	}
	slices.SortFunc(subjects, ident.Rejected.Compare)
	if changed, hurry := s.verdicts.suspect(subjects); changed {
		s.cfg.OnChange(hurry)
	}
}

// tally counts what the proxies of one version did with a resource.
type tally struct {
	ident.Rejected
	t         ident.ResourceType
	asked     bool // the leader suspects it
	rejectors []rejector
	rejecting uint32
	applied   uint32
	undecided uint32
}

// rejector is a proxy that rejects a resource, and why.
type rejector struct {
	id    string
	class index.ProxyClass
	stream.Rejection
}

// verdictReports returns what the proxies of conns did with the resources that
// some reject or the leader suspects: the first hundred, sorted.
func (s *Server) verdictReports(conns []*conn) []*reportv1.Verdict {
	rejecting, suspects := s.verdicts.known()
	if len(rejecting) == 0 && len(suspects) == 0 {
		return nil
	}
	tallies := map[ident.Rejected]*tally{}
	for _, x := range suspects {
		t, _ := ident.ResourceTypeOf(x.Type)
		tallies[x] = &tally{Rejected: x, t: t, asked: true}
	}
	for _, c := range rejecting {
		for _, r := range c.rejections() {
			x := ident.Rejected{Type: r.Type.URL(), Name: r.Name, Sum: r.Sum, Client: c.proxy.Client()}
			if tallies[x] == nil {
				tallies[x] = &tally{Rejected: x, t: r.Type}
			}
			tallies[x].rejectors = append(tallies[x].rejectors, r)
		}
	}
	// The leader's suspects come first.
	all := slices.SortedFunc(maps.Values(tallies), func(a, b *tally) int {
		switch {
		case a.asked && !b.asked:
			return -1
		case b.asked && !a.asked:
			return 1
		}
		return a.Compare(b.Rejected)
	})
	all = all[:min(len(all), maxVerdicts)]
	byClient := map[string][]*tally{}
	for _, t := range all {
		byClient[t.Client] = append(byClient[t.Client], t)
	}
	for _, c := range conns {
		c.count(byClient[c.proxy.Client()])
	}
	verdicts := make([]*reportv1.Verdict, 0, len(all))
	for _, t := range all {
		verdicts = append(verdicts, t.verdict())
	}
	return verdicts
}

// rejections returns the rejections that stand on the stream. If there are
// none, the stream is not asked again until it rejects something.
func (c *conn) rejections() []rejector {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []rejector
	if c.state != nil {
		for _, r := range c.state.Rejections() {
			all = append(all, rejector{c.proxy.ID, c.client.Class(), r})
		}
	}
	if len(all) == 0 {
		c.server.verdicts.gone(c)
	}
	return all
}

// count adds what the client did to each tally.
func (c *conn) count(tallies []*tally) {
	if len(tallies) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == nil {
		return
	}
	for _, t := range tallies {
		switch c.state.AnswerTo(t.t, t.Name, t.Sum) {
		case stream.NoAnswer:
		case stream.Pending:
			t.undecided++
		case stream.Applied:
			t.applied++
		case stream.Rejected:
			t.rejecting++
		}
	}
}

func (t *tally) verdict() *reportv1.Verdict {
	v := &reportv1.Verdict{
		TypeUrl: t.Type, Name: t.Name, Sum: t.Sum[:], Client: t.Client,
		Rejected: t.rejecting, Applied: t.applied, Undecided: t.undecided,
	}
	if len(t.rejectors) == 0 {
		return v
	}
	slices.SortFunc(t.rejectors, func(a, b rejector) int { return strings.Compare(a.id, b.id) })
	for _, r := range t.rejectors {
		if len(v.RejectedBy) < 2 && !slices.Contains(v.RejectedBy, r.id) {
			v.RejectedBy = append(v.RejectedBy, r.id)
		}
	}
	first := t.rejectors[0]
	v.Message = strings.ToValidUTF8(first.Message[:min(len(first.Message), maxReason)], "")
	v.Class = first.class.Only(t.t).Released([ident.ResourceTypes]string{}).Encode()
	if good, world := t.good(); good != nil {
		v.GoodSum, v.Good = good.Sum[:], store.VersionProto(world)
	}
	return v
}

// good returns the resource that the rejecting proxies have instead, and the
// newest version that one of them has applied in full; nil: they have none, or
// different ones.
func (t *tally) good() (good *xds.Resource, world ident.Position) {
	for _, r := range t.rejectors {
		switch {
		case r.Good == nil:
		case good != nil && !good.Same(r.Good):
			return nil, ident.Position{}
		default:
			good = r.Good
			if world.Less(r.World) {
				world = r.World
			}
		}
	}
	return good, world
}
