package stream

import (
	"slices"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/names"
	"meshlog.dev/services/mesh/xds"
)

// taint marks versions after a NACK: no canonical version looks like it, so
// every frontend answers a client that names one whole. The nonce is in such a
// version too, so that an ACK of one response cannot pass for that of another.
const taint = "nack-"

// maxGRPC is the size of the largest response that is sent to a gRPC client,
// which can receive 4 MiB (G11); what is left is for the head.
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

// desiredSum is the Sum of what the client should have of CDS or LDS.
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
		for _, h := range s.held {
			change(nil, s.want(w, h.cluster.Name))
		}
	}
	for name := range w.holds {
		if r := set.Find(name); r != nil {
			change(r, s.want(w, name))
		}
	}
	return sum
}

// desiredList is what the client should have of CDS or LDS.
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
	var own []*xds.Resource // held clusters, sorted
	if w.t == ident.CDS {
		for _, h := range s.held {
			own = append(own, h.cluster)
		}
	}
	if len(own) == 0 && len(w.holds) == 0 {
		return set.Resources
	}
	list := merge(set.Resources, own)
	kept := list[:0]
	for _, r := range list {
		if len(w.holds) > 0 {
			r = s.want(w, r.Name)
		}
		if r != nil {
			kept = append(kept, r)
		}
	}
	return kept
}

// merge makes one sorted list of two without common names.
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

// version is the version, in a response of that nonce, of what the client
// should have of the type.
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

// subscriptionSum is the Sum of what the client should have of EDS or RDS, what
// was pushed ahead included.
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

// pushWhole sends everything of CDS or LDS if that is not what was sent.
func (s *Stream) pushWhole(now time.Time, w *watch) (Response, bool) {
	if w.empty() {
		w.dirty, w.owed = false, false
		return Response{}, false
	}
	s.nextTrial(w)
	sum := s.desiredSum(w)
	for w.everGot && !w.owed && sum == w.listSum {
		if !s.nextTrial(w) {
			w.dirty = false
			return Response{}, false
		}
		sum = s.desiredSum(w)
	}
	if w.refused == sum && sum != (xds.Sum{}) {
		w.dirty = false
		return Response{}, false
	}
	l := s.cfg.Names.List(w.t, sum, func() []*xds.Resource { return s.desiredList(w) })
	if size := sizeOf(l.Resources); s.cfg.GRPC && size > maxGRPC {
		w.refused, w.dirty = sum, false
		s.cfg.Observe(Event{Kind: TooLarge, Type: w.t, Size: size})
		return Response{}, false
	}
	w.refused = xds.Sum{}
	o := outstanding{list: l.Resources, sum: sum}
	if w.t == ident.CDS {
		cold := !w.everGot && w.claimed == ""
		o.secrets = s.clustersSent(now, w, cold, func(each func(was, is *xds.Resource)) { names.Compare(w.list, l.Resources, each) })
	}
	w.list, w.listSum, w.everGot, w.owed, w.dirty = l.Resources, sum, true, false, false
	return s.respond(now, w, o, &l.Memo), true
}

// sizeOf is how many bytes resources take in a response.
func sizeOf(list []*xds.Resource) int {
	size := 0
	for _, r := range list {
		size += len(r.Head) + r.Size()
	}
	return size
}

// clustersSent does what a response of CDS brings with it: the endpoints of
// every added or changed cluster follow at once (E2), and what may name one
// that is slow to warm waits. It says whether an added one waits for secrets.
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
			s.gateUntil = now.Add(warmWait)
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

// oweEndpoints makes endpoints be sent. Only what is requested may be pushed to
// gRPC (G3); Envoy asks for them as soon as it has the cluster.
func (s *Stream) oweEndpoints(eds *watch, owed []string) {
	if len(owed) > 0 {
		eds.owe(owed, !s.cfg.GRPC)
	}
}

// due says whether a name is to be sent, if only as removed.
func (s *Stream) due(w *watch, e *entry) bool {
	if w.holds[e.name].trial {
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
		// A route configuration that is gone serves on where it is still used
		// (E6): nothing takes its place.
		return false
	case w.t == ident.EDS:
		return s.clusterWaitsFor(e.name)
	}
	return true
}

// clusterWaitsFor says whether the client has a cluster with these endpoints,
// as far as that is known.
func (s *Stream) clusterWaitsFor(endpoints string) bool {
	waits := func(r *xds.Resource) bool { return r != nil && r.Endpoints() == endpoints }
	w := s.watches[ident.CDS]
	switch {
	case w == nil && s.cfg.Only != nil:
		// Clusters have a stream of their own, where one that is gone lingers.
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
	s.spoken = true
	return Response{
		Type: w.t, Delta: s.cfg.Delta, Version: o.version, Nonce: o.nonce,
		Resources: o.list, Memo: memo, Removed: o.removed, Cause: cause,
	}
}
