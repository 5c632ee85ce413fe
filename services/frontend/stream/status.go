package stream

import (
	"maps"
	"slices"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/content"
	"meshlog.dev/services/mesh/xds"
)

// EventKind says what happened on a stream.
type EventKind uint8

// What may happen.
const (
	// Acked: a response was applied.
	Acked EventKind = iota
	// Nacked: a response was rejected, in part at least.
	Nacked
	// Stale: a request did not answer the last response of its type.
	Stale
	// Unsupported: a type was requested that is not served.
	Unsupported
	// Downgrade: a client that named unknown versions was answered although
	// the head is not known; it may have had newer ones.
	Downgrade
	// Unmatched: the clusters that a resuming client has are not known, so the
	// first answer may remove some.
	Unmatched
	// Suspect: CDS was sent although nobody asked.
	Suspect
	// TooLarge: a response of CDS or LDS for a gRPC client is larger than it
	// can receive, and is not sent (G11).
	TooLarge
	// Retaken: additions of clusters that were not ACKed for a minute were
	// taken back and are offered again (E16).
	Retaken
)

// Event is something that happened.
type Event struct {
	Kind EventKind
	Type ident.ResourceType
	// World is the version of the response that was answered, Sent when it was
	// sent here, and Published when that version was published: zero where it
	// did not cause the response (a first answer, a removal that lingered).
	World     ident.Position
	Published time.Time
	Sent      time.Time
	Nack      Nack
	Detail    string // the type URL of Unsupported
	Size      int    // of TooLarge, in bytes
}

// Status is what is known of the client. It is a copy, made when it is asked
// for.
type Status struct {
	// View is what it should have.
	View  content.View
	Types []TypeStatus
	// Held is how many clusters stay although they are gone.
	Lingering int
}

// TypeStatus is the state of one type.
type TypeStatus struct {
	Type ident.ResourceType
	// The latest version of the world that was sent, and that was applied, the
	// latter up to the one whose content is no other.
	Sent, Acked               ident.Position
	SentVersion, AckedVersion string
	SentTime, AckedTime       time.Time
	// SentAll and AckedAll say that the client was sent, and has applied, all
	// that View holds for it.
	SentAll, AckedAll bool
	Resources         int
	Nacks             int   // so far
	Nack              *Nack // that still stands
	// HeldBack is what the client is not sent because it rejected it, sorted.
	HeldBack []string
	// TooLarge says that what the client should have is more than it can
	// receive, and was not sent (G11).
	TooLarge bool
	// Unanswered is since when a response waits for its answer; zero: none.
	Unanswered time.Time
}

// Status says how the client stands.
func (s *Stream) Status() Status {
	st := Status{View: s.view, Lingering: len(s.lingering)}
	for _, w := range s.watches {
		if w != nil {
			st.Types = append(st.Types, s.statusOf(w))
		}
	}
	return st
}

// Applied is the version of the world that the client has applied, in all of the
// types for which it asked: the oldest of those; zero: none so far. All says that
// it has applied what View holds for it.
func (s *Stream) Applied() (oldest ident.Position, all bool) {
	asked := false
	all = true
	for _, w := range s.watches {
		if w == nil {
			continue
		}
		v := s.view.Version
		if !s.sentAll(w) || !w.applied() {
			v, all = w.status.acked, false
		}
		if !asked || v.Less(oldest) {
			oldest = v
		}
		asked = true
	}
	return oldest, all && asked
}

// sentAll says whether the client was sent all that it should have of a type.
func (s *Stream) sentAll(w *watch) bool {
	return !w.unresolved && !w.dirty && len(w.heldBack) == 0 && !w.tooLarge()
}

func (w *watch) tooLarge() bool { return w.oversize != (xds.Sum{}) }

func (s *Stream) statusOf(w *watch) TypeStatus {
	t := TypeStatus{
		Type: w.t,
		Sent: w.status.sent, SentVersion: w.status.sentVersion, SentTime: w.status.sentTime,
		Acked: w.status.acked, AckedVersion: w.status.ackedVersion, AckedTime: w.status.ackedTime,
		Resources: w.names.Len(), Nacks: w.status.nacks,
		TooLarge: w.tooLarge(),
	}
	switch {
	case w.whole:
		t.Resources = len(w.list)
	case w.wildcard && w.sent != nil:
		t.Resources = len(w.sent.Resources)
	}
	if w.nack != nil {
		n := *w.nack
		t.Nack = &n
	}
	if len(w.heldBack) > 0 {
		t.HeldBack = slices.Sorted(maps.Keys(w.heldBack))
	}
	if len(w.unanswered) > 0 {
		t.Unanswered = w.unanswered[0].at
	}
	t.SentAll = s.sentAll(w)
	t.AckedAll = t.SentAll && w.applied()
	if t.SentAll {
		t.Sent = s.view.Version
	}
	if t.AckedAll {
		t.Acked = s.view.Version
	}
	return t
}
