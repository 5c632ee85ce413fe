package stream

import (
	"slices"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/names"
	"meshlog.dev/services/mesh/xds"
)

// taint begins the versions of responses after a NACK. No version of a set
// looks like it, so every frontend answers a client that names one whole. Such
// a version has the nonce in it too, so that the ACK of one response cannot
// pass for the ACK of another.
const taint = "nack-"

// maxGRPC is the size of the largest response for a gRPC client, which can
// receive 4 MiB (G11). The rest is for the head of the message.
const maxGRPC = 4<<20 - 16<<10

// push returns the next response of a type, if one is due.
func (s *Stream) push(now time.Time, w *watch) (Response, bool) {
	if len(w.retake) > 0 {
		return s.takeBack(now, w), true
	}
	if !w.dirty {
		return Response{}, false
	}
	if w.whole {
		return s.pushWhole(now, w)
	}
	return s.pushDue(now, w)
}

// want returns the resource that the client should have under a name; nil:
// none, or the empty resource.
func (s *Stream) want(w *watch, name string) *xds.Resource {
	r := s.view.Sets[w.t].Find(name)
	if r == nil {
		r = s.lingeringResource(w.t, name)
	}
	if h, ok := w.heldBack[name]; ok && h.bad.Same(r) {
		return h.good
	}
	return r
}

// desiredSum returns the Sum of the clusters or listeners that the client
// should have.
func (s *Stream) desiredSum(w *watch) xds.Sum {
	set := s.view.Sets[w.t]
	if !w.wildcard {
		var sum xds.Sum
		for _, name := range w.names.List() {
			sum = sum.Add(names.SumOf(name, s.want(w, name)))
		}
		return sum
	}
	sum := set.Sum
	change := func(was, is *xds.Resource) {
		if was != nil {
			sum = sum.Add(was.Sum)
		}
		if is != nil {
			sum = sum.Add(is.Sum)
		}
	}
	if w.t == ident.CDS {
		for _, h := range s.lingering {
			change(nil, s.want(w, h.cluster.Name))
		}
	}
	for name := range w.heldBack {
		if r := set.Find(name); r != nil {
			change(r, s.want(w, name))
		}
	}
	return sum
}

// desiredList returns the clusters or listeners that the client should have.
func (s *Stream) desiredList(w *watch) []*xds.Resource {
	set := s.view.Sets[w.t]
	if !w.wildcard {
		list := make([]*xds.Resource, 0, w.names.Len())
		for _, name := range w.names.List() {
			if r := s.want(w, name); r != nil {
				list = append(list, r)
			}
		}
		return list
	}
	var own []*xds.Resource // lingering clusters, sorted
	if w.t == ident.CDS {
		for _, h := range s.lingering {
			own = append(own, h.cluster)
		}
	}
	if len(own) == 0 && len(w.heldBack) == 0 {
		return set.Resources
	}
	list := merge(set.Resources, own)
	kept := list[:0]
	for _, r := range list {
		if len(w.heldBack) > 0 {
			r = s.want(w, r.Name)
		}
		if r != nil {
			kept = append(kept, r)
		}
	}
	return kept
}

// merge returns one sorted list of two that have no name in common.
func merge(a, b []*xds.Resource) []*xds.Resource {
	all := make([]*xds.Resource, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if a[0].Name < b[0].Name {
			all, a = append(all, a[0]), a[1:]
		} else {
			all, b = append(all, b[0]), b[1:]
		}
	}
	return append(append(all, a...), b...)
}

// version returns the version of what the client should have of the type, for a
// response with that nonce.
func (s *Stream) version(w *watch, nonce string) string {
	var sum xds.Sum
	switch {
	case w.delta:
		return s.view.Sets[w.t].Sum.String()
	case w.whole:
		sum = s.desiredSum(w)
	default:
		sum = s.subscriptionSum(w)
	}
	if w.tainted {
		return taint + nonce + "-" + sum.String()
	}
	return sum.String()
}

// subscriptionSum returns the Sum of the endpoints or routes that the client
// should have, including those that were pushed ahead.
func (s *Stream) subscriptionSum(w *watch) xds.Sum {
	if w.sent == nil {
		return w.names.SumIn(s.view.Sets[w.t])
	}
	sum := w.sum
	for i := range w.entries {
		e := &w.entries[i]
		sum = sum.Add(names.SumOf(e.name, s.want(w, e.name)))
		if w.names.Has(e.name) {
			sum = sum.Add(names.SumOf(e.name, w.sent.Find(e.name)))
		}
	}
	return sum
}

// pushWhole sends all clusters or all listeners if they differ from the last
// response.
func (s *Stream) pushWhole(now time.Time, w *watch) (Response, bool) {
	if w.empty() {
		w.dirty, w.owed = false, false
		return Response{}, false
	}
	s.nextTrial(w)
	sum := s.desiredSum(w)
	for w.gotAll && !w.owed && sum == w.listSum {
		if !s.nextTrial(w) {
			w.dirty = false
			return Response{}, false
		}
		sum = s.desiredSum(w)
	}
	if w.oversize == sum && sum != (xds.Sum{}) {
		w.dirty = false
		return Response{}, false
	}
	l := s.cfg.Names.List(w.t, sum, func() []*xds.Resource { return s.desiredList(w) })
	if size := sizeOf(l.Resources); s.cfg.GRPC && size > maxGRPC {
		w.oversize, w.dirty = sum, false
		s.cfg.Observe(Event{Kind: TooLarge, Type: w.t, Size: size})
		return Response{}, false
	}
	w.oversize = xds.Sum{}
	o := outstanding{list: l.Resources, sum: sum}
	if w.t == ident.CDS {
		cold := !w.gotAll && w.claimed == ""
		o.secrets = s.clustersSent(now, w, cold, func(each func(was, is *xds.Resource)) { names.Compare(w.list, l.Resources, each) })
	}
	w.list, w.listSum, w.gotAll, w.owed, w.dirty = l.Resources, sum, true, false, false
	return s.respond(now, w, o, &l.Memo), true
}

// sizeOf returns how many bytes resources take in a response.
func sizeOf(list []*xds.Resource) int {
	size := 0
	for _, r := range list {
		size += len(r.Head) + r.Size()
	}
	return size
}

// clustersSent does what must follow a CDS response: the endpoints of every
// added or changed cluster are owed at once (E2), and listeners and routes wait
// for clusters that are slow to warm. It reports whether an added cluster waits
// for secrets.
func (s *Stream) clustersSent(now time.Time, w *watch, cold bool, sent func(each func(was, is *xds.Resource))) (secrets bool) {
	eds := s.watches[ident.EDS]
	var owed []string
	sent(func(was, is *xds.Resource) {
		if is == nil || was.Same(is) {
			return
		}
		if name := is.Endpoints(); name != "" && (eds != nil || !cold) {
			owed = append(owed, name)
		}
		secrets = secrets || is.Secrets()
		if is.SlowWarm() && was == nil && !cold {
			s.warmUntil = now.Add(warmWait)
		}
	})
	switch {
	case eds != nil:
		s.oweEndpoints(eds, owed)
	case s.cfg.Only == nil:
		s.early = append(s.early, owed...)
		slices.Sort(s.early)
		s.early = slices.Compact(s.early)
	}
	s.cdsCurrent = false
	if !w.owed && w.suspected != takenBack {
		w.suspected = unsuspected
	}
	return secrets
}

// oweEndpoints marks endpoints to be sent. A gRPC client accepts only endpoints
// that it requested (G3); Envoy requests them as soon as it has the cluster, so
// they are pushed ahead.
func (s *Stream) oweEndpoints(eds *watch, owed []string) {
	if len(owed) > 0 {
		eds.owe(owed, !s.cfg.GRPC)
	}
}

// due reports whether the next response must hold this name, perhaps as
// removed.
func (s *Stream) due(w *watch, e *entry) bool {
	if w.heldBack[e.name].trial {
		return false
	}
	if e.owed || !e.answered {
		return true
	}
	r := s.want(w, e.name)
	switch {
	case r != nil || e.sent == nil:
		return !r.Same(e.sent)
	case w.t == ident.RDS:
		// A listener may still use a removed route configuration (E6), so
		// nothing replaces it.
		return false
	case w.t == ident.EDS:
		return s.clusterWaitsFor(e.name)
	}
	return true
}

// clusterWaitsFor reports whether the client has, or may have, a cluster with
// these endpoints.
func (s *Stream) clusterWaitsFor(endpoints string) bool {
	waits := func(r *xds.Resource) bool { return r != nil && r.Endpoints() == endpoints }
	w := s.watches[ident.CDS]
	switch {
	case w == nil && s.cfg.Only != nil:
		// The client has its clusters from another stream, where removed ones
		// linger.
		clusters := s.view.Sets[ident.CDS]
		return waits(clusters.Find(endpoints)) || slices.ContainsFunc(clusters.Resources, waits)
	case w == nil:
		return true
	case waits(w.sentOf(endpoints)):
		return true
	case w.whole:
		return slices.ContainsFunc(w.list, waits)
	}
	for r := range w.had() {
		if waits(r) {
			return true
		}
	}
	return false
}

func (s *Stream) respond(now time.Time, w *watch, o outstanding, memo *names.Memo) Response {
	o.nonce, o.at = s.nextNonce(), now
	o.version = s.version(w, o.nonce)
	o.world = s.view.Version
	cause := ident.Position{}
	if w.fresh {
		o.made, w.fresh = s.view.Published, false
		cause = o.world
	}
	w.lastNonce = o.nonce
	w.remember(o)
	w.status.sent, w.status.sentVersion, w.status.sentTime = o.world, o.version, now
	s.responded = true
	return Response{
		Type: w.t, Delta: s.cfg.Delta, Version: o.version, Nonce: o.nonce,
		Resources: o.list, Memo: memo, Removed: o.removed, Cause: cause,
	}
}
