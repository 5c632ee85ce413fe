package stream

import (
	"strings"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/content"
	"meshlog.dev/services/mesh/xds"
)

// How long a client that names versions unknown here waits for its first
// response: while this frontend catches up with the head of the chain, or while
// the head cannot be read because the bus is away.
const (
	catchUp = 2 * time.Second
	busAway = 30 * time.Second
)

// headCheck is the wait for the head of the chain. Versions that are unknown
// here may be newer than the served one, and older content must never follow
// newer.
type headCheck struct {
	state   headState
	since   time.Time
	until   time.Time
	version *ident.Position // nil: unknown
}

// headState is whether a stream knows the head. It changes downwards only.
type headState uint8

const (
	headUnneeded headState = iota // the client has named only versions known here
	headWaits                     // the head is being read
	headAway                      // it cannot be read now
	headDone                      // what is served is as new as the head, or the wait is over
)

// reached reports whether the served version is as new as the head.
func (h *headCheck) reached(served ident.Position) bool {
	return h.version != nil && !served.Less(*h.version)
}

// WantsHead reports whether the stream waits for the head: it answers nothing
// until it serves the version of HeadIs, or until some time after HeadAway.
func (s *Stream) WantsHead() bool { return s.head.state == headWaits || s.head.state == headAway }

// HeadIs sets the version of the head, as read after WantsHead became true.
func (s *Stream) HeadIs(v ident.Position) { s.head.version = &v }

// HeadAway notes that the head cannot be read now. HeadIs may follow.
func (s *Stream) HeadAway() {
	if s.head.state == headWaits {
		s.head.state = headAway
		s.head.until = s.head.since.Add(busAway)
	}
}

func (s *Stream) headResolved(now time.Time) {
	s.head = headCheck{state: headDone}
	s.resolve(now)
}

// check starts the wait for the head if the client named an unknown version.
func (s *Stream) check(now time.Time, w *watch) {
	if s.head.state == headUnneeded && !s.known(w) {
		s.head = headCheck{state: headWaits, since: now, until: now.Add(catchUp)}
	}
}

// known reports whether the client named only versions that are not newer than
// the served one.
func (s *Stream) known(w *watch) bool {
	if s.cfg.Delta {
		return s.knownVersions(w)
	}
	if w.claimed == "" || w.claimed == (xds.Sum{}).String() || strings.HasPrefix(w.claimed, taint) ||
		w.claims(s.view) {
		return true
	}
	_, ok := s.pastOf(w)
	return ok
}

// versionAt returns the version of the subscription in a view.
func (w *watch) versionAt(v content.View) string {
	if w.all() {
		return v.Sets[w.t].Sum.String()
	}
	return w.names.SumIn(v.Sets[w.t]).String()
}

// claims reports whether the client named the version of its subscription in a
// view.
func (w *watch) claims(v content.View) bool {
	version, _, _ := strings.Cut(w.claimed, repetition)
	return version != "" && strings.EqualFold(version, w.versionAt(v)) // it may be marked
}

// pastOf returns the newest earlier view with the version that the client
// named. If it named none, no earlier view is looked at, because views may have
// to be made.
func (s *Stream) pastOf(w *watch) (content.View, bool) {
	if w.claimed == "" {
		return content.View{}, false
	}
	for v := range s.cfg.Past {
		if w.claims(v) {
			return v, true
		}
	}
	return content.View{}, false
}

// resolve decides on the first response of every requested type.
func (s *Stream) resolve(now time.Time) {
	if s.WantsHead() {
		return
	}
	for _, w := range s.watches {
		if w == nil || w.phase != unresolved {
			continue
		}
		if s.cfg.Delta {
			s.resolveDelta(now, w)
		} else {
			s.resolveOne(now, w)
		}
		s.wantKeys(w)
		if w.phase == unresolved {
			w.begin()
		}
	}
	// What other types should have may depend on it.
	for _, w := range s.watches {
		if w != nil {
			w.entries.changeAll()
		}
	}
}

func (s *Stream) resolveOne(now time.Time, w *watch) {
	current := w.claims(s.view)
	has := s.view
	if !current {
		past, ok := s.pastOf(w)
		if !ok {
			if w.claimed != "" && w.t == ident.CDS {
				s.cfg.Observe(Event{Kind: Unmatched, Type: w.t})
				s.lingerPast(now, w)
			}
			return // answered whole
		}
		has = past
	}
	// The client has the resources of the view has. A gRPC client may have
	// dropped a resource and kept the version (G4), so it is answered whole.
	w.acked = has.Sets[w.t]
	if w.whole && (!current || s.cfg.GRPC) {
		w.phase = allOwed
	}
	switch {
	// Endpoints are answered whole unless the client requested its clusters on
	// this stream and they are current (E9); then only the differences.
	case w.whole, !s.cfg.GRPC && (w.t == ident.EDS && s.clusters == currentClusters || w.t != ident.EDS && current):
		w.sent, w.sum = w.acked, w.names.SumIn(w.acked)
	case w.t == ident.RDS:
		w.keepGone(s.view.Sets[w.t])
	}
	if w.t == ident.CDS {
		s.lingerRemoved(now, has)
		if w.phase != allOwed {
			s.clusters = currentClusters
		}
	}
	if current {
		s.isCurrent(now, w, w.claimed)
	}
}

// isCurrent records that the client reconnected with what is served.
func (s *Stream) isCurrent(now time.Time, w *watch, version string) {
	w.progress = Progress{
		Sent: s.view.Version, SentVersion: version, SentTime: now,
		Acked: s.view.Version, AckedVersion: version, AckedTime: now,
	}
}

// keepGone keeps resources that the client has and the set has not out of the
// first response: something may still use them (E6).
func (w *watch) keepGone(set *xds.Set) {
	for r := range w.in(w.acked) {
		if set.Find(r.Name) == nil {
			e := w.except(r.Name)
			e.sent, e.delivery = r, delivered
		}
	}
}
