package stream

import (
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
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
	// newest retained version that serves it to the client's class. If none does,
	// it is the last version that the client is known to have applied in full.
	Good  *xds.Resource
	World ident.Position
}

// Rejections returns the rejections that stand, in no order. Resources on trial
// are not among them, nor listeners whose address was in use, nor Secrets: an earlier
// one needs a key that may have been replaced for a reason (KEY-6), nor filters of
// policies: clients that have one keep it, and to other clients an earlier one could be
// wider than the policies of today. They refuse all requests (POL-2). Names are for agents, which take
// all that this build makes.
func (s *Stream) Rejections() []Rejection {
	var all []Rejection
	for _, w := range s.watches {
		if w == nil || w.t == ident.SDS || w.t == ident.ECDS || w.t == ident.NDS {
			continue
		}
		for name, h := range w.heldBack {
			if h.verdict == culprit {
				all = append(all, Rejection{w.t, name, h.bad.Sum, h.message, h.good, h.world})
			}
		}
	}
	return all
}

// Count adds the client to a verdict on the resource of that type and Sum, as one
// that rejected it, applied it, or has not answered yet; it does nothing for a
// client that should not have it.
func (s *Stream) Count(v *reportv1.Verdict, t ident.ResourceType, sum xds.Sum) {
	w, name := s.watches[t], v.GetName()
	if w == nil || !w.covers(name) {
		return
	}
	h, held := w.heldBack[name]
	has, should := w.state(name).acked, s.view.Sets[t].Find(name)
	switch {
	case held && h.bad.Sum == sum && h.verdict == culprit:
		v.Rejected++
	case has != nil && has.Sum == sum:
		v.Applied++
	case should != nil && should.Sum == sum:
		v.Undecided++ // not answered yet
	}
}

// hadIn returns the World of a Rejection by a client that has good. The last version
// that the client applied in full may be older than good: a newer version can be
// pending when the client applies good.
func (s *Stream) hadIn(w *watch, good *xds.Resource) ident.Position {
	if good != nil {
		for v := range s.cfg.Past {
			if v.Sets[w.t].Find(good.Name).Same(good) {
				return v.Version
			}
		}
	}
	if w.appliedAllOf.IsZero() {
		return w.progress.Acked
	}
	return w.appliedAllOf
}
