package stream

import (
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/xds"
)

// Rejection is a resource that the client has rejected and is to blame: other
// clients like it will not take it either.
type Rejection struct {
	Type    ident.ResourceType
	Name    string
	Sum     xds.Sum
	Message string
	// Good is what the client has instead, and World the last version of which
	// it is known to have applied everything; nil: nothing.
	Good  *xds.Resource
	World ident.Position
}

// Rejections are those that stand, in no order. What is on trial is not among
// them, nor what could not be bound to its address.
func (s *Stream) Rejections() []Rejection {
	var all []Rejection
	for _, w := range s.watches {
		if w == nil {
			continue
		}
		for name, h := range w.heldBack {
			if h.blamed && !h.trial {
				all = append(all, Rejection{w.t, name, h.bad.Sum, h.message, h.good, h.world})
			}
		}
	}
	return all
}

// Opinion is what a client thinks of a resource.
type Answer uint8

// The opinions.
const (
	// NoOpinion: it was never meant for the client.
	NoAnswer Answer = iota
	// Undecided: the client should have it, and has said nothing yet.
	Pending
	// Applied: the client has it.
	Applied
	// Rejected: the client does not take it.
	Rejected
)

// Opinion is what the client thinks of a resource of that content.
func (s *Stream) AnswerTo(t ident.ResourceType, name string, sum xds.Sum) Answer {
	w := s.watches[t]
	if w == nil || !w.covers(name) {
		return NoAnswer
	}
	if h, ok := w.heldBack[name]; ok && h.bad.Sum == sum && h.blamed && !h.trial {
		return Rejected
	}
	if has := w.lastGood(name); has != nil && has.Sum == sum {
		return Applied
	}
	if should := s.view.Sets[t].Find(name); should != nil && should.Sum == sum {
		return Pending
	}
	return NoAnswer
}
