package stream

import (
	"iter"
	"slices"
	"strings"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/content"
	"meshlog.dev/services/mesh/xds"
)

// lingeringCluster is a cluster that was removed from the view. It and its
// endpoints stay with the client until nothing there can use it.
type lingeringCluster struct {
	cluster   *xds.Resource
	endpoints *xds.Resource // the newest; nil: none of its own
	since     time.Time
	lingered  bool
}

// lingerRemoved makes the clusters linger that the client was sent and the view
// lacks. before is the view before.
func (s *Stream) lingerRemoved(now time.Time, before content.View) {
	w := s.watches[ident.CDS]
	if w == nil {
		return
	}
	clusters := s.view.Sets[ident.CDS]
	s.lingering = slices.DeleteFunc(s.lingering, func(h lingeringCluster) bool { return clusters.Find(h.cluster.Name) != nil })
	for _, r := range s.clustersGone(w) {
		if h, ok := w.heldBack[r.Name]; ok {
			r = h.good
		}
		if r != nil {
			s.linger(now, r, s.lastEndpoints(before, r.Endpoints()))
		}
	}
	s.refreshLingering()
}

// linger makes a cluster linger, unless it does already.
func (s *Stream) linger(now time.Time, cluster, endpoints *xds.Resource) {
	i, lingers := slices.BinarySearchFunc(s.lingering, cluster.Name, func(h lingeringCluster, name string) int {
		return strings.Compare(h.cluster.Name, name)
	})
	if !lingers {
		s.lingering = slices.Insert(s.lingering, i, lingeringCluster{cluster: cluster, endpoints: endpoints, since: now})
	}
}

// lingerPast makes the clusters of all retained views linger that the current
// view lacks. It serves a client whose version matches none of them: some
// clusters lingered when its stream ended, and it may still have any of them
// (E7). A cluster that a quarantine has taken away since is left out: clients
// like this one reject it.
func (s *Stream) lingerPast(now time.Time, w *watch) {
	if s.cfg.GRPC {
		return
	}
	past := slices.Collect(s.cfg.Past)
	quarantined := slices.Clone(s.view.Quarantined[ident.CDS]) // in any newer view
	for _, v := range past {
		for _, r := range s.cfg.Names.Changes(v.Sets[ident.CDS], s.view.Sets[ident.CDS]).Gone {
			if w.covers(r.Name) && !slices.Contains(quarantined, r.Name) {
				s.linger(now, r, nil)
			}
		}
		quarantined = append(quarantined, v.Quarantined[ident.CDS]...)
	}
	s.findEndpoints(slices.Values(past))
	s.refreshLingering()
}

// findEndpoints looks in earlier views, the newest first, for the endpoints of
// lingering clusters. It looks at no view if none lacks them, because views may
// have to be made.
func (s *Stream) findEndpoints(past iter.Seq[content.View]) {
	var lacking []*lingeringCluster
	for i := range s.lingering {
		if h := &s.lingering[i]; h.endpoints == nil && h.cluster.Endpoints() != "" {
			lacking = append(lacking, h)
		}
	}
	if len(lacking) == 0 {
		return
	}
	for v := range past {
		lacking = slices.DeleteFunc(lacking, func(h *lingeringCluster) bool {
			h.endpoints = s.lastEndpoints(v, h.cluster.Endpoints())
			return h.endpoints != nil
		})
		if len(lacking) == 0 {
			return
		}
	}
}

// lastEndpoints returns the newest endpoints of a removed cluster: those that
// this stream sent, or those of the view before.
func (s *Stream) lastEndpoints(before content.View, name string) *xds.Resource {
	if eds := s.watches[ident.EDS]; eds != nil && eds.covers(name) {
		if e := eds.state(name); e.delivery.answered() {
			return e.sent
		}
	}
	return before.Sets[ident.EDS].Find(name)
}

// clustersGone returns the clusters that were sent to the client and are not in
// the view.
func (s *Stream) clustersGone(w *watch) []*xds.Resource {
	clusters := s.view.Sets[ident.CDS]
	var gone []*xds.Resource
	if w.sent != nil && w.sent != clusters {
		for _, r := range s.cfg.Names.Changes(w.sent, clusters).Gone {
			if w.covers(r.Name) && w.entries.find(r.Name) == nil {
				gone = append(gone, r)
			}
		}
	}
	for e := range w.entries.all() {
		if e.sent != nil && clusters.Find(e.name) == nil {
			gone = append(gone, e.sent)
		}
	}
	return gone
}

// refreshLingering keeps the newest endpoints of lingering clusters, because
// their endpoints may be removed later than the cluster.
func (s *Stream) refreshLingering() {
	for i := range s.lingering {
		h := &s.lingering[i]
		if r := s.view.Sets[ident.EDS].Find(h.cluster.Endpoints()); r != nil {
			h.endpoints = r
		}
	}
}

// lingeringOf yields the resources that the client keeps although the view lacks
// them: lingering clusters or their endpoints, and the endpoints of a cluster that the client
// keeps because it rejected the next one.
func (s *Stream) lingeringOf(t ident.ResourceType, yield func(*xds.Resource) bool) {
	if t != ident.CDS && t != ident.EDS {
		return
	}
	for _, h := range s.lingering {
		r := h.cluster
		if t == ident.EDS {
			r = h.endpoints
		}
		if r != nil && !yield(r) {
			return
		}
	}
	if w := s.watches[ident.CDS]; t == ident.EDS && w != nil {
		for _, h := range w.heldBack {
			if h.endpoints != nil && !yield(h.endpoints) {
				return
			}
		}
	}
}

// lingeringResource returns the resource of that name from lingeringOf, or nil.
func (s *Stream) lingeringResource(t ident.ResourceType, name string) (found *xds.Resource) {
	s.lingeringOf(t, func(r *xds.Resource) bool {
		if r.Name == name {
			found = r
		}
		return found == nil
	})
	return found
}

// endLingering lets go of clusters that have lingered long enough, if the
// client has applied the listeners and routes that dropped them and refers to
// them no more.
func (s *Stream) endLingering(now time.Time) {
	if len(s.lingering) == 0 {
		return
	}
	w := s.watches[ident.CDS]
	for i := range s.lingering {
		h := &s.lingering[i]
		h.lingered = h.lingered || !now.Before(h.since.Add(s.cfg.Linger))
	}
	applied := s.routesApplied()
	s.dropLingering(func(h lingeringCluster) bool {
		if !w.covers(h.cluster.Name) {
			return true
		}
		return h.lingered && applied && !s.refersTo(h.cluster.Name)
	})
}

// dropLingering lets go of some lingering clusters, and reports whether there
// was one.
func (s *Stream) dropLingering(which func(lingeringCluster) bool) bool {
	kept := slices.DeleteFunc(slices.Clone(s.lingering), which)
	if len(kept) == len(s.lingering) {
		return false
	}
	s.lingering = kept
	for _, t := range [...]ident.ResourceType{ident.CDS, ident.EDS} {
		if w := s.watches[t]; w != nil {
			w.touch()
			w.entries.changeAll()
			s.liftHeldBack(w)
		}
	}
	return true
}

// routesApplied reports whether the client has applied the filters, listeners and routes
// that it should have.
func (s *Stream) routesApplied() bool {
	return s.appliedAll(s.watches[ident.ECDS]) && s.appliedAll(s.watches[ident.LDS]) && s.appliedAll(s.watches[ident.RDS])
}

// appliedAll reports whether the client has applied all that it should have of
// a type.
func (s *Stream) appliedAll(w *watch) bool {
	switch {
	case w == nil:
		return true
	case w.phase == unresolved || !s.applied(w):
		return false
	case w.empty():
		return true
	case w.sent != s.view.Sets[w.t] && s.changed(w):
		return false
	}
	for e := range w.entries.all() {
		if s.due(w, e) {
			return false
		}
	}
	return true
}

// changed reports whether a subscribed resource differs from the one that was
// sent.
func (s *Stream) changed(w *watch) bool {
	if w.sent == nil {
		return true
	}
	ch := s.cfg.Names.Changes(w.sent, s.view.Sets[w.t])
	due := func(r *xds.Resource) bool {
		if !w.covers(r.Name) || w.entries.find(r.Name) != nil {
			return false
		}
		e := w.implied(r.Name)
		return s.due(w, &e)
	}
	return slices.ContainsFunc(ch.Resources, due) || slices.ContainsFunc(ch.Gone, due)
}

// refersTo reports whether a filter, a listener or a subscribed route that the client has
// names the cluster (E6).
func (s *Stream) refersTo(cluster string) bool {
	for _, w := range [...]*watch{s.watches[ident.ECDS], s.watches[ident.LDS], s.watches[ident.RDS]} {
		if w == nil {
			continue
		}
		for _, all := range [...]iter.Seq[*xds.Resource]{w.has(), w.had()} {
			for r := range all {
				if r.RefersTo(cluster) {
					return true
				}
			}
		}
	}
	return false
}
