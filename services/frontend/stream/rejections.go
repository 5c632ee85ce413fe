package stream

import (
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/xds"
)

// Rejection is a resource that the client rejected and that caused the
// rejection: similar clients will reject it too.
type Rejection struct {
	Type    ident.ResourceType
	Name    string
	Sum     xds.Sum
	Message string
	// Good is the resource that the client has instead; nil: none. World is the
	// last version that the client is known to have applied in full.
	Good  *xds.Resource
	World ident.Position
}

// Rejections returns the rejections that stand, in no order. Resources on trial
// are not among them, nor listeners whose address was in use.
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

// Answer is what a client did with a resource.
type Answer uint8

// The answers.
const (
	// NoAnswer: the client never should have had it.
	NoAnswer Answer = iota
	// Pending: the client should have it, and has not answered yet.
	Pending
	// Applied: the client has it.
	Applied
	// Rejected: the client rejects it.
	Rejected
)

// AnswerTo returns what the client did with a resource of that content.
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
