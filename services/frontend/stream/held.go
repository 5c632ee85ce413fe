package stream

import (
	"slices"
	"strings"
	"time"

	"meshlog.dev/services/frontend/content"
	"meshlog.dev/services/internal/model"
	"meshlog.dev/services/internal/xds"
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
	w := s.watches[model.CDS]
	if w == nil {
		return
	}
	clusters := s.view.Sets[model.CDS]
	s.held = slices.DeleteFunc(s.held, func(h held) bool { return clusters.Find(h.cluster.Name) != nil })
	for _, r := range w.sent {
		if clusters.Find(r.Name) != nil || s.heldResource(model.CDS, r.Name) != nil {
			continue
		}
		if h, ok := w.holds[r.Name]; ok {
			if r = h.good; r == nil {
				continue
			}
		}
		h := held{cluster: r, since: now}
		if r.Endpoints() != "" {
			h.endpoints = before.Sets[model.EDS].Find(r.Endpoints())
		}
		s.held = append(s.held, h)
	}
	slices.SortFunc(s.held, func(a, b held) int { return strings.Compare(a.cluster.Name, b.cluster.Name) })
	s.refreshHeld(s.view.Sets[model.EDS])
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

// heldResource is a held cluster, or the endpoints of one.
func (s *Stream) heldResource(t model.ResourceType, name string) *xds.Resource {
	for _, h := range s.held {
		switch {
		case t == model.CDS && h.cluster.Name == name:
			return h.cluster
		case t == model.EDS && h.endpoints != nil && h.endpoints.Name == name:
			return h.endpoints
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
	w := s.watches[model.CDS]
	for i := range s.held {
		h := &s.held[i]
		h.lingered = h.lingered || !now.Before(h.since.Add(s.cfg.Linger))
	}
	applied := s.routesApplied()
	kept := slices.DeleteFunc(slices.Clone(s.held), func(h held) bool {
		if _, asked := slices.BinarySearch(w.names, h.cluster.Name); !w.wildcard && !asked {
			return true
		}
		return h.lingered && applied && !s.refersTo(h.cluster.Name)
	})
	if len(kept) == len(s.held) {
		return
	}
	s.held = kept
	w.dirty = true
	if eds := s.watches[model.EDS]; eds != nil {
		eds.dirty = true
	}
}

// routesApplied says whether the client has applied the listeners and routes
// that it should have.
func (s *Stream) routesApplied() bool {
	if w := s.watches[model.LDS]; w != nil {
		_, sum := s.desired(w)
		if w.unresolved || !w.applied() || sum != w.sentSum {
			return false
		}
	}
	w := s.watches[model.RDS]
	if w == nil {
		return true
	}
	return !w.unresolved && w.applied() &&
		!slices.ContainsFunc(w.entries, func(e entry) bool { return s.due(w, &e) })
}

// refersTo says whether a listener or a subscribed route that the client has
// names the cluster (E6).
func (s *Stream) refersTo(cluster string) bool {
	names := func(r *xds.Resource) bool {
		return r != nil && r.RefersTo(cluster)
	}
	if w := s.watches[model.LDS]; w != nil && slices.ContainsFunc(w.acked, names) {
		return true
	}
	w := s.watches[model.RDS]
	return w != nil && slices.ContainsFunc(w.entries, func(e entry) bool { return names(e.acked) || names(e.sent) })
}
