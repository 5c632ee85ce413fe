package faultsim

import (
	"context"
	"fmt"

	"meshlog.dev/events"
)

// final checks the invariants that need the whole history: M3 by replays, and
// SIM-3.
func (s *sim) final() {
	head := s.head()
	if s.has("forge") && !s.without["refuse"] {
		s.checkForged()
	}
	if s.has("sign") && !s.without["sign"] {
		s.judgeSigned()
	}
	s.replay(checkpoint{build: head.manifest.GetBuild()})
	for _, c := range s.replayed[max(0, len(s.replayed)-6):] {
		s.replay(c)
	}
	gone := map[string]bool{}
	for _, r := range s.records() {
		valid, judged := s.signer.valid[r.Hash]
		if o, ok := r.Event.Body.(*events.Overlay); ok && o.Remove && (valid || !judged) {
			gone[o.ID] = true
		}
	}
	for _, h := range head.holds {
		if s.rewinds == 0 && gone[h.id] {
			fail("SIM-3", "hold %s was approved and is still there", h.id)
		}
	}
	if !s.has("op") || len(head.holds) == 0 {
		return
	}
	for i, h := range head.holds {
		ev := events.Event{ID: fmt.Sprintf("approve-%d", i), Body: &events.Overlay{ID: h.id, Remove: true}}
		batch := []events.Event{ev}
		if s.has("sign") {
			batch = s.sign(0, batch)
		}
		if _, err := s.log.Append(context.Background(), batch, events.Fence{}); err != nil {
			panic(err)
		}
	}
	var procs []*proc
	for _, b := range s.builders {
		procs = append(procs, &b.proc)
	}
	for range 300 {
		s.turn(procs)
	}
	if holds := s.head().holds; len(holds) > 0 {
		fail("SIM-3", "all holds were approved, but there are holds again: %v", holds)
	}
}
