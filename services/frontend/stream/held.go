package stream

import (
	"iter"
	"slices"
	"strings"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/content"
	"meshlog.dev/services/frontend/names"
	"meshlog.dev/services/mesh/xds"
)

// held is a cluster that is gone from the view and stays with the client
// until nothing there can use it any more, with its endpoints.
type held struct {
	cluster   *xds.Resource
	endpoints *xds.Resource // the newest; nil: none of its own
	since     time.Time
	lingered  bool
}

// holdRemoved holds the clusters that the client has and the view has not.
// Before is the view from which the client has them.
func (s *Stream) holdRemoved(now time.Time, before content.View) {
	w := s.watches[ident.CDS]
	if w == nil {
		return
	}
	clusters := s.view.Sets[ident.CDS]
	s.held = slices.DeleteFunc(s.held, func(h held) bool { return clusters.Find(h.cluster.Name) != nil })
	for _, r := range s.clustersGone(w) {
		if s.heldResource(ident.CDS, r.Name) != nil {
			continue
		}
		if h, ok := w.holds[r.Name]; ok {
			if r = h.good; r == nil {
				continue
			}
		}
		h := held{cluster: r, since: now}
		if name := r.Endpoints(); name != "" {
			h.endpoints = s.lastEndpoints(before, name)
		}
		s.held = append(s.held, h)
	}
	if len(s.held) == 0 {
		s.held = nil
		return
	}
	slices.SortFunc(s.held, func(a, b held) int { return strings.Compare(a.cluster.Name, b.cluster.Name) })
	s.refreshHeld(s.view.Sets[ident.EDS])
}

// holdPast holds the clusters of all retained versions that the view has not:
// a client whose version is none of them had some of those held when its stream
// ended, and may have any (E7).
func (s *Stream) holdPast(now time.Time, w *watch) {
	if s.cfg.GRPC {
		return
	}
	past := slices.Collect(s.cfg.Past)
	for _, v := range past {
		for _, r := range s.cfg.Names.Changes(v.Sets[ident.CDS], s.view.Sets[ident.CDS]).Gone {
			if !w.covers(r.Name) || s.heldResource(ident.CDS, r.Name) != nil {
				continue
			}
			h := held{cluster: r, since: now}
			for _, v := range past { // the newest that has them
				if name := r.Endpoints(); name != "" && h.endpoints == nil {
					h.endpoints = s.lastEndpoints(v, name)
				}
			}
			s.held = append(s.held, h)
		}
	}
	slices.SortFunc(s.held, func(a, b held) int { return strings.Compare(a.cluster.Name, b.cluster.Name) })
	s.refreshHeld(s.view.Sets[ident.EDS])
}

// lastEndpoints is the newest endpoints of a cluster that is gone: what was
// sent on this stream, or else what there was before.
func (s *Stream) lastEndpoints(before content.View, name string) *xds.Resource {
	if eds := s.watches[ident.EDS]; eds != nil && eds.covers(name) {
		if e := eds.state(name); e.answered {
			return e.sent
		}
	}
	return before.Sets[ident.EDS].Find(name)
}

// clustersGone is the clusters that were sent to the client and are not in the
// view.
func (s *Stream) clustersGone(w *watch) []*xds.Resource {
	clusters := s.view.Sets[ident.CDS]
	var gone []*xds.Resource
	if w.whole {
		names.Compare(w.list, clusters.Resources, func(was, is *xds.Resource) {
			if is == nil {
				gone = append(gone, was)
			}
		})
		return gone
	}
	if w.sent != nil && w.sent != clusters {
		for _, r := range s.cfg.Names.Changes(w.sent, clusters).Gone {
			if w.covers(r.Name) && w.entry(r.Name) == nil {
				gone = append(gone, r)
			}
		}
	}
	for i := range w.entries {
		if e := &w.entries[i]; e.sent != nil && clusters.Find(e.name) == nil {
			gone = append(gone, e.sent)
		}
	}
	return gone
}

// refreshHeld keeps the newest endpoints of held clusters, which may be gone
// after them.
func (s *Stream) refreshHeld(endpoints *xds.Set) {
	for i := range s.held {
		h := &s.held[i]
		if r := endpoints.Find(h.cluster.Endpoints()); r != nil {
			h.endpoints = r
		}
	}
}

// heldNames yields the names of which heldResource may know more than the view.
func (s *Stream) heldNames(t ident.ResourceType) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, h := range s.held {
			if t == ident.CDS && !yield(h.cluster.Name) || t == ident.EDS && h.endpoints != nil && !yield(h.endpoints.Name) {
				return
			}
		}
		if w := s.watches[ident.CDS]; t == ident.EDS && w != nil {
			for _, h := range w.holds {
				if h.endpoints != nil && !yield(h.endpoints.Name) {
					return
				}
			}
		}
	}
}

// heldResource is a held cluster, or the endpoints of one, or those of one that
// the client keeps because it rejected what came after it.
func (s *Stream) heldResource(t ident.ResourceType, name string) *xds.Resource {
	for _, h := range s.held {
		switch {
		case t == ident.CDS && h.cluster.Name == name:
			return h.cluster
		case t == ident.EDS && h.endpoints != nil && h.endpoints.Name == name:
			return h.endpoints
		}
	}
	if w := s.watches[ident.CDS]; t == ident.EDS && w != nil {
		for _, h := range w.holds {
			if h.endpoints != nil && h.endpoints.Name == name {
				return h.endpoints
			}
		}
	}
	return nil
}

// releaseHeld lets go of held clusters: when they have lingered, what dropped
// them is applied, and nothing that the client has applied refers to them.
func (s *Stream) releaseHeld(now time.Time) {
	if len(s.held) == 0 {
		return
	}
	w := s.watches[ident.CDS]
	for i := range s.held {
		h := &s.held[i]
		h.lingered = h.lingered || !now.Before(h.since.Add(s.cfg.Linger))
	}
	applied := s.routesApplied()
	kept := slices.DeleteFunc(slices.Clone(s.held), func(h held) bool {
		if !w.covers(h.cluster.Name) {
			return true
		}
		return h.lingered && applied && !s.refersTo(h.cluster.Name)
	})
	if len(kept) == len(s.held) {
		return
	}
	s.held = kept
	w.dirty = true
	if eds := s.watches[ident.EDS]; eds != nil {
		eds.dirty = true
	}
}

// routesApplied says whether the client has applied the listeners and routes
// that it should have.
func (s *Stream) routesApplied() bool {
	return s.appliedAll(s.watches[ident.LDS]) && s.appliedAll(s.watches[ident.RDS])
}

// appliedAll says whether the client has applied all that it should have of a
// type.
func (s *Stream) appliedAll(w *watch) bool {
	switch {
	case w == nil:
		return true
	case w.unresolved || !w.applied():
		return false
	case w.whole:
		return s.desiredSum(w) == w.listSum
	case w.empty():
		return true
	case w.sent != s.view.Sets[w.t] && s.changed(w):
		return false
	}
	return !slices.ContainsFunc(w.entries, func(e entry) bool { return s.due(w, &e) })
}

// changed says whether something subscribed is other than what was sent.
func (s *Stream) changed(w *watch) bool {
	if w.sent == nil {
		return true
	}
	ch := s.cfg.Names.Changes(w.sent, s.view.Sets[w.t])
	due := func(r *xds.Resource) bool {
		if !w.covers(r.Name) || w.entry(r.Name) != nil {
			return false
		}
		e := w.implied(r.Name)
		return s.due(w, &e)
	}
	return slices.ContainsFunc(ch.Resources, due) || slices.ContainsFunc(ch.Gone, due)
}

// refersTo says whether a listener or a subscribed route that the client has
// names the cluster (E6).
func (s *Stream) refersTo(cluster string) bool {
	for _, w := range [...]*watch{s.watches[ident.LDS], s.watches[ident.RDS]} {
		switch {
		case w == nil:
		case w.whole:
			if slices.ContainsFunc(w.ackedList, func(r *xds.Resource) bool { return r.RefersTo(cluster) }) {
				return true
			}
		default:
			for _, all := range [...]iter.Seq[*xds.Resource]{w.has(), w.had()} {
				for r := range all {
					if r.RefersTo(cluster) {
						return true
					}
				}
			}
		}
	}
	return false
}
