package stream

import (
	"slices"
	"strings"
	"time"

	"meshlog.dev/services/internal/model"
	"meshlog.dev/services/internal/xds"
)

// taint marks versions after a NACK: no canonical version looks like it, so
// every frontend answers a client that names one whole. The nonce is in such a
// version too, so that an ACK of one response cannot pass for that of another.
const taint = "nack-"

// want is what the client should have of a name: nil for nothing, or the empty
// resource.
func (s *Stream) want(w *watch, name string) *xds.Resource {
	r := s.view.Sets[w.t].Find(name)
	if r == nil {
		r = s.heldResource(w.t, name)
	}
	if h, ok := w.holds[name]; ok && h.bad.Same(r) {
		return h.good
	}
	return r
}

// desired is what the client should have of CDS or LDS.
func (s *Stream) desired(w *watch) ([]*xds.Resource, xds.Sum) {
	set := s.view.Sets[w.t]
	if !w.wildcard {
		list := make([]*xds.Resource, 0, len(w.names))
		for _, n := range w.names {
			if r := s.want(w, n); r != nil {
				list = append(list, r)
			}
		}
		return only(list, w.names)
	}
	if len(w.holds) == 0 && (w.t != model.CDS || len(s.held) == 0) {
		return set.Resources, set.Sum
	}
	list := slices.Clone(set.Resources)
	if w.t == model.CDS {
		for _, h := range s.held {
			list = append(list, h.cluster)
		}
		slices.SortFunc(list, func(a, b *xds.Resource) int { return strings.Compare(a.Name, b.Name) })
	}
	var sum xds.Sum
	kept := list[:0]
	for _, r := range list {
		if h, ok := w.holds[r.Name]; ok && h.bad.Same(r) {
			r = h.good
		}
		if r != nil {
			kept = append(kept, r)
			sum = sum.Add(r.Sum)
		}
	}
	return kept, sum
}

// version is the version, in a response of that nonce, of what the client
// should have of the type.
func (s *Stream) version(w *watch, nonce string) string {
	var sum xds.Sum
	if w.full() {
		_, sum = s.desired(w)
	} else {
		for i := range w.entries {
			sum = sum.Add(s.entrySum(w, w.entries[i].name))
		}
	}
	if w.tainted {
		return taint + nonce + "-" + sum.String()
	}
	return sum.String()
}

func (s *Stream) entrySum(w *watch, name string) xds.Sum {
	if r := s.want(w, name); r != nil {
		return r.Sum
	}
	return xds.Absent(name)
}

// pushFull sends everything of CDS or LDS if that is not what was sent.
func (s *Stream) pushFull(now time.Time, w *watch) (Response, bool) {
	if !w.wildcard && len(w.names) == 0 {
		w.dirty, w.owed = false, false
		return Response{}, false
	}
	list, sum := s.desired(w)
	if w.everGot && !w.owed && sum == w.sentSum {
		w.dirty = false
		return Response{}, false
	}
	o := outstanding{list: list, sum: sum}
	if w.t == model.CDS {
		o.secrets = s.clustersSent(now, w, list)
	}
	w.sent, w.sentSum, w.everGot, w.owed, w.dirty = list, sum, true, false, false
	return s.respond(now, w, o, list), true
}

// clustersSent does what a response of CDS with that list brings with it: the
// endpoints of every added or changed cluster follow at once (E2), and what
// may name a cluster that is slow to warm waits. It says whether an added
// cluster waits for secrets.
func (s *Stream) clustersSent(now time.Time, w *watch, list []*xds.Resource) (secrets bool) {
	eds := s.watches[model.EDS]
	cold := !w.everGot && w.claimed == ""
	for _, r := range list {
		i, had := xds.Search(w.sent, r.Name)
		if had && w.sent[i].Same(r) {
			continue
		}
		if name := r.Endpoints(); name != "" && eds != nil {
			// Only what is requested may be pushed to gRPC (G3); Envoy asks
			// for it as soon as it has the cluster.
			eds.owe(name, !s.cfg.GRPC)
		}
		secrets = secrets || r.Secrets()
		if r.SlowWarm() && !had && !cold {
			s.gateUntil = now.Add(warmWait)
		}
	}
	s.cdsCurrent = false
	w.suspected = w.suspected && w.owed
	return secrets
}

// pushNamed sends the names of EDS or RDS that are due.
func (s *Stream) pushNamed(now time.Time, w *watch) (Response, bool) {
	var due []*entry
	var alone *entry
	for i := range w.entries {
		e := &w.entries[i]
		switch {
		case !s.due(w, e):
		case !e.alone:
			due = append(due, e)
		case alone == nil:
			alone = e
		}
	}
	if len(due) == 0 && alone != nil {
		if len(w.sentOut) > 0 {
			return Response{}, false // its answer must not be mixed with another
		}
		due = []*entry{alone}
	}
	if len(due) == 0 {
		w.dirty = false
		return Response{}, false
	}
	o := outstanding{items: make([]item, len(due))}
	resources := make([]*xds.Resource, len(due))
	for i, e := range due {
		r := s.want(w, e.name)
		o.items[i] = item{e.name, r}
		e.sent, e.answered, e.owed, e.alone = r, true, false, false
		if r == nil {
			r = xds.Empty(w.t, e.name)
		}
		resources[i] = r
	}
	return s.respond(now, w, o, resources), true
}

// due says whether a name is to be sent.
func (s *Stream) due(w *watch, e *entry) bool {
	if e.owed || !e.answered {
		return true
	}
	r := s.want(w, e.name)
	switch {
	case r != nil || e.sent == nil:
		return !r.Same(e.sent)
	case w.t == model.RDS:
		// A route configuration that is gone serves on where it is still used
		// (E6): nothing takes its place.
		return false
	}
	return s.clusterWaitsFor(e.name)
}

// clusterWaitsFor says whether the client has a cluster with these endpoints,
// as far as that is known.
func (s *Stream) clusterWaitsFor(endpoints string) bool {
	w := s.watches[model.CDS]
	return w == nil || slices.ContainsFunc(w.sent, func(r *xds.Resource) bool { return r.Endpoints() == endpoints })
}

func (s *Stream) respond(now time.Time, w *watch, o outstanding, resources []*xds.Resource) Response {
	o.nonce, o.at = s.nextNonce(), now
	o.version = s.version(w, o.nonce)
	o.world = s.view.Version
	if w.fresh {
		o.made, w.fresh = s.view.Published, false
	}
	w.lastNonce = o.nonce
	w.remember(o)
	w.status.Sent, w.status.SentVersion, w.status.SentTime = o.world, o.version, now
	s.spoken = true
	return Response{Type: w.t, Version: o.version, Nonce: o.nonce, Resources: resources}
}
