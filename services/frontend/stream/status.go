package stream

import (
	"iter"
	"maps"
	"slices"
	"time"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/frontend/content"
	"meshlog.dev/services/mesh/xds"
)

// EventKind is the kind of an Event.
type EventKind uint8

// The kinds of events.
const (
	// Acked: the client applied a response.
	Acked EventKind = iota
	// Nacked: the client rejected a response, or a part of it.
	Nacked
	// Stale: a request did not answer the last response of its type.
	Stale
	// Unsupported: the client requested a type that is not served.
	Unsupported
	// Downgrade: a client that named unknown versions was answered although the
	// head is not known. It may have had newer ones.
	Downgrade
	// Unmatched: a resuming client named clusters of no known version.
	Unmatched
	// Suspect: CDS was sent again, or although the client did not request it.
	Suspect
	// TooLarge: a response of CDS or LDS for a gRPC client is larger than it
	// can receive, and is not sent (G11).
	TooLarge
	// Retaken: added clusters that were not ACKed for a minute were removed and
	// offered again (E16).
	Retaken
)

// Event is something that happened on a stream.
type Event struct {
	Kind EventKind
	Type ident.ResourceType
	// World is the version of the response that was answered, Sent when it was
	// sent, and Published when World was published: zero if World did not cause
	// the response (a first response, a removal that lingered).
	World     ident.Position
	Published time.Time
	Sent      time.Time
	Nack      *reportv1.Nack
	Detail    string // the type URL of Unsupported
	Size      int    // of TooLarge, in bytes
}

// Status is the state of the client. It is a copy.
type Status struct {
	// View is what the client should have.
	View  content.View
	Types []TypeStatus
	// Lingering is how many removed clusters stay with the client.
	Lingering int
}

// TypeStatus is the state of one type.
type TypeStatus struct {
	Type ident.ResourceType
	Progress
	// SentAll, AckedAll: the client was sent, and has applied, all that View
	// holds for it.
	SentAll, AckedAll bool
	Resources         int
	Nack              *reportv1.Nack // that still stands; read-only
	// HeldBack are the names that the client rejected, sorted.
	HeldBack []string
	// TooLarge: the response exceeds what the client can receive, and was not
	// sent (G11).
	TooLarge bool
	// WaitsForKeys are the Secrets for whose private keys the next response waits
	// (SDS-9), sorted.
	WaitsForKeys []string
	// Unanswered is when the oldest response without an answer was sent; zero:
	// there is none.
	Unanswered time.Time
}

// Progress is the newest version of the world that was sent, and that was
// applied. A later version with the same content counts as applied too.
type Progress struct {
	Sent, Acked               ident.Position
	SentVersion, AckedVersion string
	SentTime, AckedTime       time.Time
}

// Status returns the state of the client.
func (s *Stream) Status() Status {
	st := Status{View: s.view, Lingering: len(s.lingering)}
	for _, w := range s.watches {
		if w.requested() {
			st.Types = append(st.Types, s.statusOf(w))
		}
	}
	return st
}

// Applied returns the oldest version of the world that the client has applied
// among the types that it requested; zero: none. All reports that it has
// applied everything that View holds for it.
func (s *Stream) Applied() (oldest ident.Position, all bool) {
	asked := false
	all = true
	for _, w := range s.watches {
		if !w.requested() {
			continue
		}
		v := s.view.Version
		if !s.sentAll(w) || !s.applied(w) {
			v, all = w.progress.Acked, false
		}
		if !asked || v.Less(oldest) {
			oldest = v
		}
		asked = true
	}
	return oldest, all && asked
}

// requested reports whether the client requested the type, or answered it: what it
// was sent unasked it may never answer (PRO-1).
func (w *watch) requested() bool {
	return w != nil && (w.scope != unasked || !w.progress.AckedTime.IsZero())
}

// sentAll reports whether the client was sent all that it should have of a
// type.
func (s *Stream) sentAll(w *watch) bool {
	return w.phase == current && len(w.heldBack) == 0 && !w.tooLarge()
}

func (w *watch) tooLarge() bool { return w.oversize.sum != (xds.Sum{}) }

func (s *Stream) statusOf(w *watch) TypeStatus {
	t := TypeStatus{
		Type: w.t, Progress: w.progress, Resources: w.names.Len(), TooLarge: w.tooLarge(), Nack: w.nack, WaitsForKeys: slices.Clone(w.awaited),
	}
	if w.whole || w.all() {
		t.Resources = w.size()
	}
	if len(w.heldBack) > 0 {
		t.HeldBack = slices.Sorted(maps.Keys(w.heldBack))
	}
	if len(w.unanswered) > 0 {
		t.Unanswered = w.unanswered[0].at
	}
	t.SentAll = s.sentAll(w)
	t.AckedAll = t.SentAll && s.applied(w)
	if t.SentAll {
		t.Sent = s.view.Version
	}
	if t.AckedAll {
		t.Acked = s.view.Version
	}
	return t
}

// Holds returns what the client has applied under a name: nil is nothing. gets reports
// whether the client has asked for the name and is to have a resource of it.
func (s *Stream) Holds(t ident.ResourceType, name string) (has *xds.Resource, gets bool) {
	w := s.watches[t]
	if !w.requested() || !w.covers(name) || s.view.Sets[t].Find(name) == nil {
		return nil, false
	}
	if e := w.state(name); e.standing == confirmed {
		has = e.acked
	}
	return has, true
}

// HoldsAny is Holds for each name that is true of, and that the client is to have a resource
// of.
func (s *Stream) HoldsAny(t ident.ResourceType, is func(name string) bool) iter.Seq[*xds.Resource] {
	return func(yield func(*xds.Resource) bool) {
		for _, r := range s.view.Sets[t].Resources {
			if !is(r.Name) {
				continue
			}
			if has, gets := s.Holds(t, r.Name); gets && !yield(has) {
				return
			}
		}
	}
}
