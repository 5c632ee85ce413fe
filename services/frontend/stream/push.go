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

// repetition begins the suffix with the nonce that a version gets if the client
// may already name the same version as its own.
const repetition = "+"

// maxGRPC is the size of the largest response for a gRPC client, which can
// receive 4 MiB (G11). The rest is for the head of the message.
const maxGRPC = 4<<20 - 16<<10

// want returns the resource that the client should have under a name; nil:
// none, or the empty resource.
func (s *Stream) want(w *watch, name string) *xds.Resource {
	r := s.wantKeyless(w, name)
	if w.t == ident.SDS {
		return s.withKey(r)
	}
	return r
}

// wantKeyless is want, of a Secret without its key.
func (s *Stream) wantKeyless(w *watch, name string) *xds.Resource {
	r := s.served(w.t, name)
	if h, ok := w.heldBack[name]; ok && h.bad.Same(r) {
		return h.good
	}
	return r
}

// served returns the resource that the view has under a name, or that lingers.
func (s *Stream) served(t ident.ResourceType, name string) *xds.Resource {
	if r := s.view.Sets[t].Find(name); r != nil {
		return r
	}
	return s.lingeringResource(t, name)
}

// version returns the version of a response of the type with that nonce: it
// tells what the client should have. No response has a version that the client
// may already have: Envoy names its version in a NACK too, and a request that
// names the version of its nonce is an ACK (E14).
func (s *Stream) version(w *watch, nonce string) string {
	if s.cfg.Delta {
		return s.view.Sets[w.t].Sum.String()
	}
	version := s.subscriptionSum(w).String()
	if s.marks() {
		version = mark(version)
	}
	if w.trust != trusted || w.t == ident.SDS && s.incomplete(w) {
		return taint + nonce + "-" + version
	}
	for w.mayName(version) && !s.cfg.GRPC {
		version += repetition + nonce
	}
	return version
}

// mayName reports whether the client may name the version as its own.
func (w *watch) mayName(version string) bool {
	return w.progress.AckedVersion == version ||
		slices.ContainsFunc(w.unanswered, func(o outstanding) bool { return o.version == version })
}

// subscriptionSum returns the Sum of what the client should have, including what
// was pushed ahead.
func (s *Stream) subscriptionSum(w *watch) xds.Sum {
	if w.sent == nil {
		return w.names.SumIn(s.view.Sets[w.t])
	}
	sum := w.sum
	if w.all() {
		sum = w.sent.Sum
	}
	for e := range w.entries.all() {
		sum = sum.Add(w.sumOf(e.name, s.want(w, e.name)))
		if w.covers(e.name) {
			sum = sum.Add(w.sumOf(e.name, w.sent.Find(e.name)))
		}
	}
	return sum
}

// clustersSent does what must follow a CDS response: the endpoints of every
// added or changed cluster are owed at once (E2), and listeners and routes wait
// for clusters that are slow to warm. Old has, for each cluster in list, the one
// that was sent before; nil: none was. It reports whether an added cluster waits
// for secrets.
func (s *Stream) clustersSent(now time.Time, w *watch, cold bool, list, old []*xds.Resource) (secrets bool) {
	eds := s.watches[ident.EDS]
	var owed []string
	for i, is := range list {
		var was *xds.Resource
		if old != nil {
			was = old[i]
		}
		if was.Same(is) {
			continue
		}
		if name := is.Endpoints(); name != "" && (eds != nil || !cold) {
			owed = append(owed, name)
		}
		secrets = secrets || is.Secrets()
		if is.SlowWarm() && was == nil && !cold {
			s.warmUntil = now.Add(warmWait)
		}
	}
	switch {
	case eds != nil:
		s.oweEndpoints(eds, owed)
	case s.cfg.Only == nil:
		s.early = append(s.early, owed...)
		slices.Sort(s.early)
		s.early = slices.Compact(s.early)
	}
	if s.clusters == currentClusters {
		s.clusters = requestedClusters
	}
	if w.phase != allOwed && w.suspected != takenBack {
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
	if h, held := w.heldBack[e.name]; held && h.verdict == onTrial && !w.whole {
		return false
	}
	if w.t == ident.SDS && s.keyComes(w, e.name) {
		return false
	}
	r := s.want(w, e.name)
	if w.t == ident.ECDS && r == nil && (e.sent != nil || e.acked != nil) {
		return false // the client keeps what it has: without it, it answers 500 (E44)
	}
	if e.delivery == asked || e.delivery == owed {
		return true
	}
	switch {
	case w.t == ident.SDS && r == nil:
		return false // the client keeps what it has (E37)
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
	case waits(w.state(endpoints).sent):
		return true
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
	w.progress.Sent, w.progress.SentVersion, w.progress.SentTime = o.world, o.version, now
	s.greeting = greeted
	return Response{
		Type: w.t, Delta: s.cfg.Delta, Version: o.version, Nonce: o.nonce,
		Resources: o.list, Memo: memo, Marked: s.cfg.Delta && s.marks(), Removed: o.removed, Cause: cause,
	}
}
