package stream

import (
	"strings"
	"time"

	"meshlog.dev/services/frontend/content"
	"meshlog.dev/services/internal/model"
	"meshlog.dev/services/internal/xds"
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

// known says whether the version that the client named tells that what it has
// is not newer than what is served.
func (s *Stream) known(w *watch) bool {
	if w.claimed == "" || w.claimed == (xds.Sum{}).String() || strings.HasPrefix(w.claimed, taint) ||
		w.claimed == w.versionAt(s.view) {
		return true
	}
	_, ok := s.pastOf(w)
	return ok
}

// versionAt is the canonical version of the subscription in a view.
func (w *watch) versionAt(v content.View) string {
	switch {
	case w.wildcard:
		return v.Sets[w.t].Sum.String()
	case w.full():
		return v.Sets[w.t].SumOf(w.names).String()
	}
	var sum xds.Sum
	for _, e := range w.entries {
		if r := v.Sets[w.t].Find(e.name); r != nil {
			sum = sum.Add(r.Sum)
		} else {
			sum = sum.Add(xds.Absent(e.name))
		}
	}
	return sum.String()
}

// pastOf is the newest earlier version in which the client's was the current
// one.
func (s *Stream) pastOf(w *watch) (content.View, bool) {
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
		if w != nil && w.unresolved {
			w.unresolved = false
			s.resolveOne(now, w)
		}
	}
}

func (s *Stream) resolveOne(now time.Time, w *watch) {
	current := w.claimed != "" && w.claimed == w.versionAt(s.view)
	has := s.view
	if !current {
		past, ok := s.pastOf(w)
		if w.claimed == "" || !ok {
			if w.claimed != "" && w.t == model.CDS {
				s.cfg.Observe(Event{Kind: Unmatched, Type: w.t})
			}
			w.owed = true
			return // answered whole
		}
		has = past
	}
	// The client has what has holds. Of gRPC clients that is not known: they
	// may have dropped a resource and kept the version (G4).
	if w.full() {
		w.sent, w.sentSum = w.in(has)
		w.acked, w.ackedSum = w.sent, w.sentSum
		w.everGot = true
		w.owed = !current || s.cfg.GRPC
		if w.t == model.CDS {
			s.holdRemoved(now, has)
			s.cdsCurrent = !w.owed
		}
	} else {
		// Endpoints are answered whole unless the clusters were asked for and
		// are current (E9).
		silent := current && !s.cfg.GRPC && (w.t != model.EDS || s.cdsCurrent)
		for i := range w.entries {
			e := &w.entries[i]
			e.acked, e.applied = has.Sets[w.t].Find(e.name), true
			e.sent, e.answered = e.acked, silent
		}
	}
	if current {
		w.status.Sent, w.status.SentVersion, w.status.SentTime = s.view.Version, w.claimed, now
		w.status.Acked, w.status.AckedVersion, w.status.AckedTime = s.view.Version, w.claimed, now
	}
}

// in is what the subscription holds in a view.
func (w *watch) in(v content.View) ([]*xds.Resource, xds.Sum) {
	set := v.Sets[w.t]
	if w.wildcard {
		return set.Resources, set.Sum
	}
	return only(set.Resources, w.names)
}
