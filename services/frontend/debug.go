package frontend

import (
	"bytes"
	"cmp"
	"encoding/json"
	"iter"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/frontend/content"
	"meshlog.dev/services/frontend/replica"
	"meshlog.dev/services/frontend/stream"
	"meshlog.dev/services/mesh/anytype"
)

// Serving returns the served state; nil: none yet.
func (s *Server) Serving() *replica.State { return s.serving.Load() }

// Proxies yields a report of each stream, sorted by the proxy's id. It makes
// one report at a time.
func (s *Server) Proxies() iter.Seq[*reportv1.ProxyReport] {
	return func(yield func(*reportv1.ProxyReport) bool) {
		for _, c := range s.sortedStreams() {
			if !yield(c.report()) {
				return
			}
		}
	}
}

// sortedStreams returns the open streams, sorted by proxy and age.
func (s *Server) sortedStreams() []*conn {
	conns := s.openStreams()
	slices.SortFunc(conns, func(a, b *conn) int {
		return cmp.Or(strings.Compare(a.proxy.ID, b.proxy.ID), a.since.Compare(b.since))
	})
	return conns
}

// PushStatus is how far the served version has reached the proxies.
type PushStatus struct {
	// Version is served. Published is when its builder published it, by the
	// builder's clock.
	Version   ident.Position `json:"version"`
	Published time.Time      `json:"published,omitzero"`
	// Streams is the number of open streams. Applied of them have applied all that
	// they should have, Behind have not been sent the last change, and Rejected
	// have a rejection that stands.
	Streams  int `json:"streams"`
	Applied  int `json:"applied"`
	Behind   int `json:"behind"`
	Rejected int `json:"rejected"`
	// Classes is for how many classes resources are kept, counted for each type;
	// MaxClasses is the limit, 0: none.
	Classes    int `json:"classes"`
	MaxClasses int `json:"maxClasses"`
	// Opening counts the streams that have sent no request yet, RequestBytes the
	// memory of requests that are being received and decoded.
	Opening      int   `json:"opening"`
	RequestBytes int64 `json:"requestBytes"`
	// Waiting counts the new streams that wait to begin, FirstAnswers those that
	// have not acknowledged their first responses.
	Waiting      int `json:"waiting"`
	FirstAnswers int `json:"firstAnswers"`
	// Unanswered lists the oldest responses without an answer, up to the given
	// number; AllUnanswered counts all of them.
	AllUnanswered int          `json:"unanswered"`
	Unanswered    []Unanswered `json:"oldestUnanswered"`

	heldBack [ident.ResourceTypes]int // resources, for metrics
}

// Unanswered is a response without an answer.
type Unanswered struct {
	Proxy string    `json:"proxy"`
	Type  string    `json:"type"` // CDS
	Since time.Time `json:"since"`
}

// PushStatus returns the state of all streams, with at most that many Unanswered.
func (s *Server) PushStatus(most int) PushStatus {
	p := PushStatus{Unanswered: []Unanswered{}} // as JSON not null
	if st := s.serving.Load(); st != nil {
		p.Version, p.Published = st.Version(), timeOf(st.Manifest.GetPublishTime())
	}
	p.Classes, p.MaxClasses = s.cache.Sets(), s.cfg.Limits.Classes
	p.Opening = int(s.opening.Load())
	p.RequestBytes, _ = s.budget.inUse()
	p.Waiting, p.FirstAnswers = s.admission.state()
	for _, c := range s.openStreams() {
		c.pushStatus(&p)
	}
	p.AllUnanswered = len(p.Unanswered)
	slices.SortFunc(p.Unanswered, func(a, b Unanswered) int {
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Proxy, b.Proxy), strings.Compare(a.Type, b.Type))
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
	c.withState(func(state *stream.Stream) {
		if _, all := state.Applied(); all {
			p.Applied++
		}
		rejected := false
		for _, t := range state.Status().Types {
			rejected = rejected || t.Nack != nil
			p.heldBack[t.Type] += len(t.HeldBack)
			if !t.Unanswered.IsZero() {
				p.Unanswered = append(p.Unanswered, Unanswered{c.proxy.ID, t.Type.String(), t.Unanswered})
			}
		}
		if rejected {
			p.Rejected++
		}
	})
}

// Dumped is a resource that a proxy should have, or has.
type Dumped struct {
	// Connected is when the stream began. It identifies one of a proxy's streams.
	Connected time.Time `json:"connected"`
	Type      string    `json:"type"` // CDS
	Name      string    `json:"name"`
	// Version is the hash of the name and the content that the proxy should
	// have, as in delta; empty: it should have nothing, or the content is not
	// known.
	Version     string          `json:"version,omitempty"`
	Sent        bool            `json:"sent"`
	Applied     bool            `json:"applied"`
	Current     bool            `json:"current"` // the proxy was sent what it should have
	HeldBack    bool            `json:"heldBack,omitempty"`
	Quarantined bool            `json:"quarantined,omitempty"`
	Lingering   bool            `json:"lingering,omitempty"`
	Resource    json.RawMessage `json:"resource,omitempty"` // of Version
	Unreadable  string          `json:"unreadable,omitempty"`
}

// Dump yields the resources of a type, or of all, that the streams of a proxy
// should have or have, sorted by type and name for each stream.
func (s *Server) Dump(id string, only *ident.ResourceType) iter.Seq[Dumped] {
	return func(yield func(Dumped) bool) {
		for _, c := range s.sortedStreams() {
			if c.proxy.ID == id && !c.dump(only, yield) {
				return
			}
		}
	}
}

// dump reports whether the caller wants more.
func (c *conn) dump(only *ident.ResourceType, yield func(Dumped) bool) bool {
	var view content.View
	var contents []*reportv1.TypeContent
	c.withState(func(state *stream.Stream) { view, contents = state.Status().View, state.Contents() })
	// No lock is held here, because the reader of the dump may be slow.
	for _, of := range contents {
		t, _ := ident.ResourceTypeOf(of.GetTypeUrl())
		if only != nil && t != *only {
			continue
		}
		for _, r := range of.GetResources() {
			d := Dumped{
				Connected: c.since, Type: t.String(), Name: r.GetName(), Sent: r.GetSent(), Applied: r.GetApplied(),
				HeldBack: r.GetHeldBack(), Quarantined: r.GetQuarantined(), Lingering: r.GetLingering(),
			}
			if should := view.Sets[t].Find(d.Name); should != nil {
				d.Version, d.Current = should.Sum.String(), bytes.Equal(should.Sum[:], r.GetSum())
				m, err := (&anypb.Any{TypeUrl: t.URL(), Value: should.Value()}).UnmarshalNew()
				if err == nil {
					d.Resource, err = protojson.MarshalOptions{Resolver: anytype.Types}.Marshal(m)
				}
				if err != nil {
					d.Unreadable = err.Error()
				}
			}
			if !yield(d) {
				return false
			}
		}
	}
	return true
}
