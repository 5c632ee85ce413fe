package frontend

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"time"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/frontend/replica"
	"meshlog.dev/services/frontend/stream"
	"meshlog.dev/services/mesh/xds"
)

// Serving is what is served; nil: nothing yet.
func (s *Server) Serving() *replica.State { return s.serving.Load() }

// Proxies yields what there is to say of each stream, sorted by the proxy's id.
// It makes one report at a time.
func (s *Server) Proxies() iter.Seq[*reportv1.ProxyReport] {
	return func(yield func(*reportv1.ProxyReport) bool) {
		for _, c := range s.sortedStreams() {
			if !yield(c.report()) {
				return
			}
		}
	}
}

// streamsInOrder are those of streamsNow, sorted.
func (s *Server) sortedStreams() []*conn {
	conns := s.openStreams()
	slices.SortFunc(conns, func(a, b *conn) int {
		return cmp.Or(strings.Compare(a.proxy.ID, b.proxy.ID), a.since.Compare(b.since))
	})
	return conns
}

// PushStatus says how far the version that is served has come, and who waits.
type PushStatus struct {
	// Version is served, since Published by the clock of its builder.
	Version   ident.Position
	Published time.Time
	// Streams are open. Applied of them have all that they should have; Behind
	// have not been sent what changed last.
	Streams, Applied, Behind int
	// Waiting are new streams that wait until they may begin; FirstAnswers are
	// those that have not acknowledged their first answers.
	Waiting, FirstAnswers int
	// Unanswered are responses that wait for their answer, the oldest first, as
	// many as were asked for; AllUnanswered is how many there are.
	Unanswered    []Unanswered
	AllUnanswered int
	// Rejected are streams on which a rejection stands.
	Rejected int
}

// Unanswered is a response that waits for its answer.
type Unanswered struct {
	Proxy string
	Type  ident.ResourceType
	Since time.Time
}

// PushStatus looks at every stream; at most so many of Unanswered are told.
func (s *Server) PushStatus(most int) PushStatus {
	var p PushStatus
	if st := s.serving.Load(); st != nil {
		p.Version = st.Version()
		if t := st.Manifest.GetPublishTime(); t != nil {
			p.Published = t.AsTime()
		}
	}
	p.Waiting, p.FirstAnswers = s.admission.state()
	for _, c := range s.openStreams() {
		c.pushStatus(&p)
	}
	p.AllUnanswered = len(p.Unanswered)
	slices.SortFunc(p.Unanswered, func(a, b Unanswered) int {
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Proxy, b.Proxy), cmp.Compare(a.Type, b.Type))
	})
	p.Unanswered = p.Unanswered[:min(most, len(p.Unanswered))]
	return p
}

// pushStatus adds a stream to p.
func (c *conn) pushStatus(p *PushStatus) {
	p.Streams++
	if c.behind.Load() {
		p.Behind++
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == nil {
		return
	}
	if _, all := c.state.Applied(); all {
		p.Applied++
	}
	rejected := false
	for _, t := range c.state.Status().Types {
		rejected = rejected || t.Nack != nil
		if !t.Unanswered.IsZero() {
			p.Unanswered = append(p.Unanswered, Unanswered{c.proxy.ID, t.Type, t.Unanswered})
		}
	}
	if rejected {
		p.Rejected++
	}
}

// Dumped is a resource that a proxy should have, or has.
type Dumped struct {
	// Since when the stream is open tells the streams of a proxy apart.
	Since time.Time
	Type  ident.ResourceType
	// Resource is what it should have; nil: nothing, or what is not known.
	Resource *xds.Resource
	// What it was sent; zero but for the name where it was sent nothing.
	stream.ResourceContents
}

// Dump yields what the streams of a proxy should have or have, each sorted by
// type and name.
func (s *Server) Dump(id string) iter.Seq[Dumped] {
	return func(yield func(Dumped) bool) {
		for _, c := range s.sortedStreams() {
			if c.proxy.ID == id && !c.dump(yield) {
				return
			}
		}
	}
}

// dump says whether there is to be more.
func (c *conn) dump(yield func(Dumped) bool) bool {
	c.mu.Lock()
	if c.state == nil {
		c.mu.Unlock()
		return true
	}
	view, contents := c.state.Status().View, c.state.Contents()
	c.mu.Unlock() // whoever reads the dump may be slow
	for _, t := range contents {
		set := view.Sets[t.Type]
		for _, r := range t.Resources {
			if !yield(Dumped{Since: c.since, Type: t.Type, Resource: set.Find(r.Name), ResourceContents: r}) {
				return false
			}
		}
	}
	return true
}
