package stream

import (
	"strings"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/content"
	"meshlog.dev/services/mesh/xds"
)

// How long a client that names versions unknown here waits for its first
// answer: while this frontend catches up with the head, or while nobody can be
// asked for it.
const (
	catchUp = 2 * time.Second
	busAway = 30 * time.Second
)

// headCheck is what a stream does about versions that are unknown here: they
// may be newer than what is served, and older content never follows newer.
type headCheck struct {
	waiting bool
	done    bool
	away    bool
	since   time.Time
	until   time.Time
}

// WantsHead says whether nothing is answered before HeadConfirmed, or HeadAway
// and some time.
func (s *Stream) WantsHead() bool { return s.head.waiting }

// HeadConfirmed says that what is served is the head of the version chain, or
// newer than it was when WantsHead began to say true.
func (s *Stream) HeadConfirmed(now time.Time) {
	if s.head.waiting {
		s.settled(now)
	}
}

// HeadAway says that the head cannot be asked for. HeadConfirmed may follow.
func (s *Stream) HeadAway() {
	if s.head.waiting && !s.head.away {
		s.head.away = true
		s.head.until = s.head.since.Add(busAway)
	}
}

func (s *Stream) settled(now time.Time) {
	s.head = headCheck{done: true}
	s.resolve(now)
}

// check starts waiting for the head if the version that the client named is
// unknown.
func (s *Stream) check(now time.Time, w *watch) {
	if !s.head.done && !s.head.waiting && !s.known(w) {
		s.head = headCheck{waiting: true, since: now, until: now.Add(catchUp)}
	}
}

// known says whether the versions that the client named tell that what it has
// is not newer than what is served.
func (s *Stream) known(w *watch) bool {
	if s.cfg.Delta {
		return s.knownVersions(w)
	}
	if w.claimed == "" || w.claimed == (xds.Sum{}).String() || strings.HasPrefix(w.claimed, taint) ||
		w.claimed == w.versionAt(s.view) {
		return true
	}
	_, ok := s.pastOf(w)
	return ok
}

// versionAt is the canonical version of the subscription in a view.
func (w *watch) versionAt(v content.View) string {
	if w.wildcard {
		return v.Sets[w.t].Sum.String()
	}
	return w.names.SumIn(v.Sets[w.t]).String()
}

// pastOf is the newest earlier version in which the client's was the current
// one. A client that names none costs no look at them: they may have to be made.
func (s *Stream) pastOf(w *watch) (content.View, bool) {
	if w.claimed == "" {
		return content.View{}, false
	}
	for v := range s.cfg.Past {
		if w.versionAt(v) == w.claimed {
			return v, true
		}
	}
	return content.View{}, false
}

// resolve decides, for every type that was requested, what its first answer
// is.
func (s *Stream) resolve(now time.Time) {
	if s.head.waiting {
		return
	}
	for _, w := range s.watches {
		if w == nil || !w.unresolved {
			continue
		}
		w.unresolved = false
		if s.cfg.Delta {
			s.resolveDelta(now, w)
		} else {
			s.resolveOne(now, w)
		}
	}
}

func (s *Stream) resolveOne(now time.Time, w *watch) {
	current := w.claimed != "" && w.claimed == w.versionAt(s.view)
	has := s.view
	if !current {
		past, ok := s.pastOf(w)
		if !ok {
			if w.claimed != "" && w.t == ident.CDS {
				s.cfg.Observe(Event{Kind: Unmatched, Type: w.t})
				s.holdPast(now, w)
			}
			w.owed = w.whole
			return // answered whole
		}
		has = past
	}
	// The client has what has holds. Of gRPC clients that is not known: they
	// may have dropped a resource and kept the version (G4).
	if w.whole {
		w.list, w.listSum = w.allIn(has)
		w.ackedList, w.ackedSum = w.list, w.listSum
		w.everGot = true
		w.owed = !current || s.cfg.GRPC
		if w.t == ident.CDS {
			s.holdRemoved(now, has)
			s.cdsCurrent = !w.owed
		}
	} else {
		w.acked = has.Sets[w.t]
		// Endpoints are answered whole unless the clusters were asked for and
		// are current (E9); then only those that are other than the client's.
		if !s.cfg.GRPC && (w.t == ident.EDS && s.cdsCurrent || w.t != ident.EDS && current) {
			w.sent, w.sum = w.acked, w.names.SumIn(w.acked)
		} else if w.t == ident.RDS {
			w.keepGone(s.view.Sets[w.t])
		}
	}
	if current {
		s.isCurrent(now, w, w.claimed)
	}
}

// isCurrent notes that the client came with what is served.
func (s *Stream) isCurrent(now time.Time, w *watch, version string) {
	p := &w.status
	p.sent, p.sentVersion, p.sentTime = s.view.Version, version, now
	p.acked, p.ackedVersion, p.ackedTime = s.view.Version, version, now
}

// keepGone makes a first answer leave alone what the client has and the set
// has not: where it is still used it serves on (E6).
func (w *watch) keepGone(set *xds.Set) {
	for r := range w.in(w.acked) {
		if set.Find(r.Name) == nil {
			e := w.except(r.Name)
			e.sent, e.answered = r, true
		}
	}
}

// allIn is what the subscription to a whole type holds in a view.
func (w *watch) allIn(v content.View) ([]*xds.Resource, xds.Sum) {
	set := v.Sets[w.t]
	if w.wildcard {
		return set.Resources, set.Sum
	}
	return only(set.Resources, w.names)
}
